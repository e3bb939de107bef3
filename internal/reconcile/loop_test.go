// SPDX-License-Identifier: Apache-2.0

package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/slipway-project/slipway/internal/backend/fake"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/reconcile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConvergeTwice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newFake(t)
		want := smallCluster(h)
		l := newLoop(h)
		converge(t, l, want, plan.Plan{})
		if n := len(h.Steps()); n != len(want.Entries) {
			t.Errorf("got %d steps for %d items:\n%s", n, len(want.Entries), verbs(h.Steps()))
		}
		for _, s := range h.Steps() {
			if s.Why == "" {
				t.Errorf("%s %s has no reason", s.Verb, s.Ref)
			}
		}
		again := newLoop(h)
		converge(t, again, want, want)
		if all, steps := again.Board.All(); steps != 0 || len(all) != len(want.Entries) {
			t.Errorf("second run: got %d steps and %d items", steps, len(all))
		}
	})
}

// A second run over ready items does not report them as unready, and does not change the trace of the
// start.
func TestConvergeAgainIsSilent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newFake(t)
		want := smallCluster(h)
		l := newLoop(h)
		converge(t, l, want, plan.Plan{})
		board, _ := l.Board.All()
		spans := l.Board.Spans()
		time.Sleep(time.Hour)
		changes := l.Board.Subscribe()
		defer changes.End()
		converge(t, l, want, plan.Plan{})
		if got := changes.Take(); len(got) > 0 {
			t.Errorf("got changes %v, want none", got)
		}
		now, _ := l.Board.All()
		if diff := cmp.Diff(board, now, cmp.AllowUnexported(plan.Ref{})); diff != "" {
			t.Errorf("board (-before +after):\n%s", diff)
		}
		if diff := cmp.Diff(spans, l.Board.Spans()); diff != "" {
			t.Errorf("spans (-before +after):\n%s", diff)
		}
		h.Write("/etc/c/conf", 0o600, "modified")
		converge(t, l, want, plan.Plan{})
		if got := verbs(h.Steps()[len(want.Entries):]); got != "replace file//etc/c/conf" { // etcd read the right one
			t.Errorf("got steps:\n%s", got)
		}
	})
}

func TestUnrelatedItemsDoNotWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newFake(t)
		h.Behave("slow", fake.Behaviour{ReadyAfter: time.Minute})
		h.FailDo("unit/broken", errors.New("no disk"), 40)
		want := build(func(b *plan.Builder) {
			slow := b.Add(unit("slow"))
			broken := b.Add(unit("broken"))
			quick := b.Add(unit("quick"))
			b.Add(unit("after-quick"), quick)
			b.Add(unit("after-all"), slow, broken, quick)
		})
		l := newLoop(h)
		begun := time.Now()
		converge(t, l, want, plan.Plan{})
		ready := map[string]time.Duration{}
		for _, s := range l.Board.Spans() {
			ready[s.Ref] = s.Ready.Sub(begun)
		}
		if ready["unit/quick"] != 0 || ready["unit/after-quick"] != 0 {
			t.Errorf("quick units waited: %v", ready)
		}
		if ready["unit/slow"] != time.Minute {
			t.Errorf("the slow unit was ready after %s", ready["unit/slow"])
		}
		if last := max(ready["unit/slow"], ready["unit/broken"]); ready["unit/after-all"] != last {
			t.Errorf("after-all was ready at %s, its last need at %s", ready["unit/after-all"], last)
		}
	})
}

// One attempt has a deadline. Waiting has none, and always has a reason.
func TestDeadlines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newFake(t)
		h.Behave("never", fake.Behaviour{}) // a oneshot that does not exit
		h.Behave("patient", fake.Behaviour{HoldReady: true})
		once := unit("never")
		once.Oneshot = true
		want := build(func(b *plan.Builder) {
			b.Add(plan.Precondition{Name: "quorum", Provider: "the other members"})
			b.Add(unit("patient"))
			b.Add(once)
		})
		want.Entries[2].Deadline = 3 * time.Second
		l := newLoop(h)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- l.Converge(ctx, want, plan.Plan{}) }()

		time.Sleep(24 * time.Hour)
		precondition, patient, never := phase(l.Board, "precondition/quorum"), phase(l.Board, "unit/patient"), phase(l.Board, "unit/never")
		if precondition.Phase != reconcile.Starting || precondition.What != "it is not fulfilled" || precondition.Who != "the other members" || time.Since(precondition.Since) != 24*time.Hour {
			t.Errorf("precondition: %+v", precondition)
		}
		if patient.Phase != reconcile.Starting || patient.What != "waiting for nothing" || h.Starts("patient") != 1 {
			t.Errorf("patient: %+v, %d starts", patient, h.Starts("patient"))
		}
		if !strings.Contains(never.Error, context.DeadlineExceeded.Error()) && never.Phase == reconcile.Failing || h.Starts("never") < 1000 {
			t.Errorf("never: %+v, %d starts", never, h.Starts("never"))
		}
		h.Open("quorum")
		h.Open("patient")
		synctest.Wait()
		if a, b := phase(l.Board, "precondition/quorum").Phase, phase(l.Board, "unit/patient").Phase; a != reconcile.Ready || b != reconcile.Ready {
			t.Errorf("after opening: got precondition %s and unit %s, want ready", a, b)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Converge: %v", err)
		}
	})
}

func TestCancellation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newFake(t)
		h.Behave("hold", fake.Behaviour{HoldReady: true})
		h.FailDo("dir//broken", errors.New("no"), -1)
		once := unit("once")
		once.Oneshot = true
		want := build(func(b *plan.Builder) {
			hold := b.Add(unit("hold"))
			b.Add(unit("waits"), hold)
			b.Add(plan.Dir{Path: "/broken"})
			b.Add(once)
			b.Add(plan.Precondition{Name: "g"})
		})
		l := newLoop(h)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- l.Converge(ctx, want, plan.Plan{}) }()
		time.Sleep(20 * time.Second)
		cancel()
		begun := time.Now()
		if err := <-ended; !errors.Is(err, context.Canceled) || time.Since(begun) > time.Second {
			t.Errorf("after %s: %v", time.Since(begun), err)
		}
	})
}

func TestWaitingNamesTheNeed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newFake(t)
		h.Behave("etcd", fake.Behaviour{HoldReady: true})
		want := build(func(b *plan.Builder) {
			etcd := b.Add(unit("etcd"))
			b.Add(unit("api"), etcd)
		})
		l := newLoop(h)
		ended := make(chan error)
		go func() { ended <- l.Converge(t.Context(), want, plan.Plan{}) }()
		synctest.Wait()
		if s := phase(l.Board, "unit/api"); s.Phase != reconcile.Waiting || s.What != "unit/etcd" {
			t.Errorf("api: %+v", s)
		}
		h.Crash("etcd")
		synctest.Wait()
		if s := phase(l.Board, "unit/etcd"); s.Phase != reconcile.Starting || !strings.Contains(s.What, "killed") {
			t.Errorf("etcd: %+v", s)
		}
		h.Open("etcd")
		time.Sleep(time.Second) // it is restarted after a short delay
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestSpans(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newFake(t)
		h.Behave("a", fake.Behaviour{ReadyAfter: 3 * time.Second})
		h.Behave("b", fake.Behaviour{ReadyAfter: 2 * time.Second})
		want := build(func(b *plan.Builder) {
			a := b.Add(unit("a"))
			b.Add(unit("b"), a)
		})
		l := newLoop(h)
		begun := time.Now()
		converge(t, l, want, plan.Plan{})
		var got []string
		for _, s := range l.Board.Spans() {
			got = append(got, fmt.Sprintf("%s needs %v: begun %s released %s done %s ready %s, %s because %s", s.Ref, s.Needs,
				s.Begun.Sub(begun), s.Released.Sub(begun), s.Done.Sub(begun), s.Ready.Sub(begun), s.Step, s.Why))
		}
		if diff := cmp.Diff([]string{
			"unit/a needs []: begun 0s released 0s done 0s ready 3s, create because it has never been started",
			"unit/b needs [unit/a]: begun 0s released 3s done 3s ready 5s, create because it has never been started",
		}, got); diff != "" {
			t.Errorf("spans (-want +got):\n%s", diff)
		}
	})
}

func TestRetries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newFake(t)
		h.FailDo("dir//d", errors.New("no disk"), 30)
		l := newLoop(&watchful{Host: h})
		converge(t, l, build(func(b *plan.Builder) { b.Add(plan.Dir{Path: "/d"}) }), plan.Plan{})
		at := l.Host.(*watchful).did
		if len(at) != 31 {
			t.Fatalf("got %d attempts, want 31", len(at))
		}
		jitter := map[time.Duration]bool{}
		for i := 1; i < len(at); i++ {
			nominal := min(50*time.Millisecond<<min(i-1, 10), 10*time.Second)
			got := at[i].Sub(at[i-1])
			if got < nominal*9/10 || got > nominal*11/10 {
				t.Errorf("pause %d: got %s, want about %s", i, got, nominal)
			}
			if nominal == 10*time.Second {
				jitter[got] = true
			}
		}
		if len(jitter) < 10 {
			t.Errorf("long pauses have no jitter: %v", jitter)
		}
		if s := l.Board.Spans()[0]; s.Attempts != 30 {
			t.Errorf("got %d failed attempts in the trace", s.Attempts)
		}
	})
}

// watchful records when steps were attempted.
type watchful struct {
	reconcile.Host
	did []time.Time
}

func (w *watchful) Do(ctx context.Context, s plan.Step, e plan.Entry) error {
	w.did = append(w.did, time.Now())
	return w.Host.Do(ctx, s, e)
}

func TestFailuresAreOnTheBoard(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		trouble func(h *fake.Host)
		want    string
	}{
		"a step":         {func(h *fake.Host) { h.FailDo("dir//d", errors.New("no disk"), -1) }, "create: no disk"},
		"an observation": {func(h *fake.Host) { h.FailObserve("dir//d", errors.New("I/O error"), -1) }, "observe: I/O error"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newFake(t)
				tc.trouble(h)
				l := newLoop(h)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				err := l.Converge(ctx, build(func(b *plan.Builder) { b.Add(plan.Dir{Path: "/d"}) }), plan.Plan{})
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("converge: %v", err)
				}
				s := phase(l.Board, "dir//d")
				if s.Phase != reconcile.Failing || s.Error != tc.want {
					t.Errorf("got %s %q, want failing %q", s.Phase, s.Error, tc.want)
				}
				if len(h.Steps()) > 0 {
					t.Errorf("got steps %v, want none", h.Steps())
				}
			})
		})
	}
}

// An unknown state never leads to a step, however often it is observed.
func TestUnknownIsAskedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newFake(t)
		host := &vague{Host: h, times: 5}
		l := newLoop(host)
		converge(t, l, build(func(b *plan.Builder) { b.Add(plan.Dir{Path: "/d"}) }), plan.Plan{})
		if got := verbs(h.Steps()); got != "create dir//d" || host.times != 0 {
			t.Errorf("steps: %s", got)
		}
	})
}

// vague does not know the first times.
type vague struct {
	reconcile.Host
	times int
}

func (v *vague) Observe(ctx context.Context, e plan.Entry) (plan.State, error) {
	if v.times > 0 {
		v.times--
		return plan.State{Detail: "the disk is asleep"}, nil
	}
	return v.Host.Observe(ctx, e)
}
