// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/slipway-project/slipway/internal/backend/hosttest"
	"github.com/slipway-project/slipway/internal/core/plan"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	t.Parallel()
	hosttest.Run(t, func(t *testing.T) hosttest.Rig {
		h := New()
		t.Cleanup(h.Close)
		return hosttest.Rig{
			Host: h,
			Dir:  "/machine",
			Unit: func(name string, b hosttest.Behaviour) plan.Unit {
				h.Behave(name, Behaviour{
					HoldReady: b.HoldReady, Exit: b.Exit, Code: b.Code, Say: b.Say, IgnoreTerm: b.IgnoreTerm, Child: b.Child,
				})
				return plan.Unit{
					Name: name, Args: []string{"/bin/" + name, fmt.Sprint(b)}, Oneshot: b.Oneshot, StopTimeout: 5 * time.Second, Ready: plan.Probe{Kind: b.Ready},
				}
			},
			Precondition: func(name string) plan.Precondition { return plan.Precondition{Name: name, Provider: "the test"} },
			Open:         h.Open, Crash: h.Crash, Starts: h.Starts, Running: h.Running, Signals: h.Signals,
			WriteFile: h.Write,
			ReadFile:  func(path string) (fs.FileMode, string, bool) { return h.Read(path) },
		}
	})
}

func TestTroubleComesAsOftenAsAsked(t *testing.T) {
	t.Parallel()
	h := New()
	defer h.Close()
	f := plan.File{Path: "/etc/f", Mode: 0o600}
	e := plan.Entry{Ref: plan.RefOf(f), Item: f}
	bad := errors.New("no disk")
	h.FailDo(e.Ref.String(), bad, 2)
	h.FailObserve(e.Ref.String(), bad, 1)
	for i, want := range []error{bad, bad, nil} {
		if err := h.Do(t.Context(), plan.Step{Verb: plan.Create, Ref: e.Ref}, e); !errors.Is(err, want) {
			t.Errorf("step %d: got %v, want %v", i, err, want)
		}
	}
	for i, want := range []error{bad, nil} {
		if s, err := h.Observe(t.Context(), e); !errors.Is(err, want) || (err != nil) != (s.Existence == plan.Unknown) {
			t.Errorf("observation %d: got %+v %v, want %v", i, s, err, want)
		}
	}
	if n := len(h.Steps()); n != 1 {
		t.Errorf("got %d steps, want the one that was done", n)
	}
}

// The host uses timers of package time, so that synctest controls them.
func TestReadyAfter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := New()
		defer h.Close()
		h.Behave("slow", Behaviour{ReadyAfter: time.Hour})
		u := plan.Unit{Name: "slow", Args: []string{"/bin/slow"}}
		e := plan.Entry{Ref: plan.RefOf(u), Item: u}
		begin := time.Now()
		if err := h.Do(t.Context(), plan.Step{Verb: plan.Create, Ref: e.Ref}, e); err != nil {
			t.Fatal(err)
		}
		if err := h.Await(t.Context(), e, func(string) {}); err != nil || time.Since(begin) != time.Hour {
			t.Errorf("got ready after %s, %v", time.Since(begin), err)
		}
	})
}
