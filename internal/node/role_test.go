// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	nodev1 "github.com/slipway-project/slipway/api/node/v1"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/reconcile"
)

func TestControlRole(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.config()
	var mu sync.Mutex
	var log []string
	say := func(s string) {
		mu.Lock()
		defer mu.Unlock()
		log = append(log, s)
	}
	done := make(chan struct{}, 10)
	c.Control = func(ctx context.Context, doc []byte, board *reconcile.Board) error {
		say("begin " + string(doc))
		board.Set(reconcile.Status{Ref: "control/dns", Phase: reconcile.Waiting})
		board.Set(reconcile.Status{Ref: ControlRole, Phase: reconcile.Ready})
		select {
		case <-done:
			board.Set(reconcile.Status{Ref: "control/dns", Phase: reconcile.Ready})
			<-ctx.Done()
		case <-ctx.Done():
		}
		say("end " + string(doc))
		return ctx.Err()
	}
	l := m.boot(t, c)
	want := planOf(plan.Dir{Path: "/a"})
	for i, doc := range []string{"one", "one", "two"} {
		l.send(t, want, doc)
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := l.client.Watch(ctx, &nodev1.WatchRequest{})
		if err != nil {
			t.Fatal(err)
		}
		phases := map[string]string{}
		for {
			e, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			phases[e.GetItem().GetRef()] = e.GetItem().GetPhase()
			if i > 0 && doc == "one" && e.GetConverged() {
				break // it went on as it was
			}
			if phases["dir//a"] == "ready" && phases[ControlRole] == "ready" && phases["control/dns"] == "waiting" && len(done) == 0 {
				done <- struct{}{}
			}
			if !e.GetConverged() {
				continue
			}
			if phases["control/dns"] == "" || phases[ControlRole] != "ready" {
				t.Errorf("%s: converged, and the control role has said %v", doc, phases)
			}
			break
		}
		cancel()
	}
	l.end()
	if diff := cmp.Diff([]string{"begin one", "end one", "begin two", "end two"}, log); diff != "" {
		t.Errorf("control role (-want +got):\n%s", diff)
	}
}

func TestControlRoleFails(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.config()
	c.Control = func(context.Context, []byte, *reconcile.Board) error { return errors.New("no such version") }
	l := m.boot(t, c)
	l.send(t, planOf(plan.Dir{Path: "/a"}), "doc")
	stream, err := l.client.Watch(t.Context(), &nodev1.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for {
		e, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if e.GetConverged() {
			t.Fatal("converged without a control role")
		}
		if i := e.GetItem(); i.GetRef() == ControlRole && i.GetPhase() == "failing" {
			if i.GetError() != "no such version" {
				t.Errorf("it says %q", i.GetError())
			}
			return
		}
	}
}
