// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/backend/hosttest"
	"github.com/slipway-project/slipway/internal/backend/units"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/testkit"
)

// A running unit that fails its health check is reported as not ready, and as ready once it recovers.
func TestHealth(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	var mu sync.Mutex
	var kinds []units.EventKind
	b.conf.intervals = intervals{health: 5 * time.Millisecond, unhealthy: time.Millisecond, hung: time.Hour, logs: time.Hour, notify: time.Hour}
	b.conf.OnEvent = func(e units.Event) {
		mu.Lock()
		defer mu.Unlock()
		kinds = append(kinds, e.Kind)
	}
	h := b.host(t)
	u := hosttest.RealUnit(b.dir, "u", hosttest.Behaviour{Ready: plan.ProbeFile})
	do(t, h, plan.Create, u)
	await(t, h, u)
	pid := status(t, h, "u").PID
	if err := os.Remove(u.Ready.Path); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "a loss of readiness", func() bool { return !state(t, h, u).Ready })
	if s := state(t, h, u); !s.Matches || !strings.Contains(s.Detail, "the file does not exist") {
		t.Errorf("got state %+v", s)
	}
	if err := os.WriteFile(u.Ready.Path, []byte("again"), 0o600); err != nil {
		t.Fatal(err)
	}
	await(t, h, u)
	if got := status(t, h, "u"); got.PID != pid || got.Restarts != 0 {
		t.Errorf("got status %+v, want the same process", got)
	}
	testkit.Eventually(t, "the last event", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(kinds) >= 4
	})
	mu.Lock()
	defer mu.Unlock()
	if got := len(kinds); got != 4 || kinds[0] != units.Started || kinds[1] != units.Ready || kinds[2] != units.Unready || kinds[3] != units.Ready {
		t.Errorf("got events %v", kinds)
	}
}

// A unit that hangs for too long is restarted, even if it ignores SIGTERM, and even if another agent takes
// over in between.
func TestHungUnitIsRestarted(t *testing.T) {
	t.Parallel()
	for name, anew := range map[string]bool{"one agent": false, "another agent": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			b.conf.intervals = intervals{health: 5 * time.Millisecond, unhealthy: time.Millisecond, hung: 200 * time.Millisecond, logs: time.Hour, notify: time.Hour}
			h := b.host(t)
			u := hosttest.RealUnit(b.dir, "u", hosttest.Behaviour{Ready: plan.ProbeFile})
			u.StopTimeout = 50 * time.Millisecond
			do(t, h, plan.Create, u)
			await(t, h, u)
			pid := status(t, h, "u").PID
			if err := errors.Join(syscall.Kill(pid, syscall.SIGSTOP), os.Remove(u.Ready.Path)); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, "a loss of readiness", func() bool { return !state(t, h, u).Ready })
			if anew {
				h = handOver(t, b, h, func() {})
			}
			testkit.Eventually(t, "another process", func() bool { s := status(t, h, "u"); return s.Ready && s.PID != pid })
			s := status(t, h, "u")
			if s.Restarts != 1 || s.LastExit == nil || s.LastExit.String() != "restarted because it was unhealthy for 200ms" {
				t.Errorf("got status %+v, last exit %v", s, s.LastExit)
			}
		})
	}
}

// READY=1 is sent once. If no agent was listening at that moment, the unit is restarted.
func TestNotifyMissedWhileNoAgentListened(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.conf.intervals = intervals{health: time.Hour, unhealthy: time.Hour, logs: time.Hour, notify: 50 * time.Millisecond}
	h := b.host(t)
	u := plan.Unit{ // its message is lost if no one listens, as with sd_notify
		Name: "u", Args: []string{"/bin/sh", "-c", "while [ ! -e go ]; do sleep 0.01; done; touch said; exec sleep 1000"},
		Dir: b.dir, Ready: plan.Probe{Kind: plan.ProbeNotify},
	}
	do(t, h, plan.Create, u)
	h = handOver(t, b, h, func() {
		if err := os.WriteFile(filepath.Join(b.dir, "go"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "READY=1 to be sent", func() bool { _, err := os.Stat(filepath.Join(b.dir, "said")); return err == nil })
	})
	if s := state(t, h, u); s.Existence != plan.Present || s.Ready {
		t.Errorf("got state %+v", s)
	}
	if err := h.Await(t.Context(), entry(u), func(string) {}); err == nil || !strings.Contains(err.Error(), "READY=1") {
		t.Errorf("got await error %v", err)
	}
	step, ok := plan.Next(entry(u), state(t, h, u))
	if !ok || step.Verb != plan.Replace {
		t.Errorf("got step %+v", step)
	}
	do(t, h, step.Verb, u)
	if s := state(t, h, u); !s.Matches {
		t.Errorf("got state %+v after the restart", s)
	}
}

// A stop that is interrupted and retried still ends with SIGKILL at the original deadline, and SIGTERM is
// sent only once.
func TestStopDeadlineDoesNotMove(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	h := b.host(t)
	u := hosttest.RealUnit(b.dir, "u", hosttest.Behaviour{Ready: plan.ProbeTCP, IgnoreTerm: true})
	u.StopTimeout = 400 * time.Millisecond
	do(t, h, plan.Create, u)
	await(t, h, u)
	begin := time.Now()
	for time.Since(begin) < 10*time.Second {
		if stopFor(t, h, u, 150*time.Millisecond) == nil {
			break
		}
	}
	if took := time.Since(begin); took < u.StopTimeout || took > 5*time.Second {
		t.Errorf("stopped after %s", took)
	}
	if heard := hosttest.RealSignals(b.dir, "u"); len(heard) != 1 {
		t.Errorf("got signals %v, want one SIGTERM", heard)
	}
}

func stopFor(t *testing.T, h *Host, u plan.Unit, limit time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	return h.Do(ctx, plan.Step{Verb: plan.Remove, Ref: plan.RefOf(u)}, entry(u))
}

// The end of a oneshot is not reported as an unexpected exit.
func TestOneshotDoesNotExit(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	kinds := make(chan units.EventKind, 9)
	b.conf.OnEvent = func(e units.Event) { kinds <- e.Kind }
	h := b.host(t)
	do(t, h, plan.Create, plan.Unit{Name: "job", Args: []string{"/bin/true"}, Oneshot: true})
	for range 9 {
		if kind := <-kinds; kind == units.Done {
			return
		} else if kind != units.Started {
			t.Fatalf("got event %s", kind)
		}
	}
}
