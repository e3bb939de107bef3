// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	nodev1 "github.com/slipway-project/slipway/api/node/v1"
	"github.com/slipway-project/slipway/internal/core/plan"
)

// The same plan again breaks off nothing, forgets nothing, and has not converged before the machine has been looked at.
func TestSamePlanAgain(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	l := m.boot(t, m.config())
	want := planOf(plan.File{Path: "/a", Content: "sound", Mode: 0o600}, etcd())
	l.send(t, want, "")
	l.converged(t)
	since := func() map[string]int64 {
		s, err := l.client.Status(t.Context(), &nodev1.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]int64{}
		for _, i := range s.GetItems() {
			out[i.GetRef()] = i.GetSinceUnixNano()
		}
		return out
	}
	first := since()
	for range 3 {
		l.send(t, want, "")
		if last, _ := l.converged(t); last.GetSteps() != 0 {
			t.Errorf("%d steps", last.GetSteps())
		}
	}
	if diff := cmp.Diff(first, since()); diff != "" {
		t.Errorf("since (-before +after):\n%s", diff)
	}
	m.Write("/a", 0o600, "spoilt")
	l.send(t, want, "")
	if last, _ := l.converged(t); last.GetSteps() != 1 {
		t.Errorf("a file was spoilt, and %d steps were taken", last.GetSteps())
	}
	if _, text, _ := m.Read("/a"); text != "sound" { // until the look is over, nothing counts as converged
		t.Error("converged, and it still is")
	}
}

// A step under way goes on when the same plan comes again.
func TestSamePlanDoesNotBreakOff(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.config()
	slow := &slowHost{testMachine: m, begun: make(chan struct{}, 9), goOn: make(chan struct{})}
	c.Host = slow
	l := m.boot(t, c)
	want := planOf(plan.Dir{Path: "/a"})
	l.send(t, want, "")
	<-slow.begun
	l.send(t, want, "")
	close(slow.goOn)
	if last, _ := l.converged(t); last.GetSteps() != 1 || slow.broken {
		t.Errorf("%d steps, broken off: %t", last.GetSteps(), slow.broken)
	}
}

type slowHost struct {
	*testMachine
	begun, goOn chan struct{}
	broken      bool
}

func (s *slowHost) Do(ctx context.Context, step plan.Step, e plan.Entry) error {
	s.begun <- struct{}{}
	select {
	case <-s.goOn:
	case <-ctx.Done():
		s.broken = true
		return ctx.Err()
	}
	return s.testMachine.Do(ctx, step, e)
}
