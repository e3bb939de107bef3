// SPDX-License-Identifier: Apache-2.0

package reconcile_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/reconcile"
)

func TestRemove(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newFake(t)
		before := smallCluster(h)
		l := newLoop(h)
		converge(t, l, before, plan.Plan{})
		done := len(h.Steps())
		h.Write("/etc/c/mine", 0o600, "the user's")

		want := build(func(b *plan.Builder) {
			bin := b.Add(plan.Artifact{Path: "/opt/etcd", Digest: "sha256:00"})
			b.Add(unit("runtime"), bin)
		})
		l.Board.Reset()
		converge(t, l, want, before)
		if diff := cmp.Diff(`remove staticpod/web
remove unit/import
remove unit/api
remove unit/etcd
remove file//etc/c/conf
remove cert/ca
remove dir//etc/c`, verbs(h.Steps()[done:])); diff != "" {
			t.Errorf("steps (-want +got):\n%s", diff)
		}
		if _, _, ok := h.Read("/etc/c/mine"); !ok {
			t.Error("a file that Slipway did not make was removed")
		}
		if h.Running("etcd")+h.Running("api") != 0 || h.Running("runtime") != 1 {
			t.Error("wrong units are running")
		}
		all, steps := l.Board.All()
		if len(all) != 2 || steps != 7 {
			t.Errorf("got %d steps and items %v, want removed items to leave the board", steps, all)
		}
		for _, s := range all {
			if s.Phase != reconcile.Ready {
				t.Errorf("%+v", s)
			}
		}
	})
}

// An item that left the plan and cannot be observed is kept until its state is known.
func TestUnknownIsNotRemoved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newFake(t)
		before := build(func(b *plan.Builder) { b.Add(plan.Dir{Path: "/d"}) })
		l := newLoop(h)
		converge(t, l, before, plan.Plan{})
		h.FailObserve("dir//d", errors.New("I/O error"), -1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := l.Converge(ctx, plan.Plan{}, before); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("converge: %v", err)
		}
		if got := verbs(h.Steps()); got != "create dir//d" {
			t.Errorf("steps:\n%s", got)
		}
		if s := phase(l.Board, "dir//d"); s.Phase != reconcile.Failing || s.Error != "observe: I/O error" {
			t.Errorf("got status %+v", s)
		}
		h.FailObserve("dir//d", nil, 0)
		converge(t, l, plan.Plan{}, before)
		if _, _, ok := h.Read("/d"); ok {
			t.Error("the directory still exists")
		}
	})
}

// A unit can be removed although this process has never observed its inputs, as after an agent restart.
func TestRemoveUnitWithUnseenInput(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newFake(t)
		l := newLoop(h)
		converge(t, l, build(func(b *plan.Builder) { b.Add(unit("u")) }), plan.Plan{})
		for name, plans := range map[string]func() (want, before plan.Plan){
			"the input is removed too": func() (want, before plan.Plan) { return plan.Plan{}, withInput("/gone") },
			"the input stays": func() (want, before plan.Plan) {
				return build(func(b *plan.Builder) { b.Add(plan.File{Path: "/stays"}) }), withInput("/stays")
			},
		} {
			converge(t, l, build(func(b *plan.Builder) { b.Add(unit("u")) }), plan.Plan{})
			want, before := plans()
			converge(t, l, want, before)
			if h.Running("u") != 0 {
				t.Errorf("%s: the unit is still running", name)
			}
		}
	})
}

func withInput(path string) plan.Plan {
	return build(func(b *plan.Builder) {
		f := b.Add(plan.File{Path: path})
		b.Add(unit("u", f), f)
	})
}

func TestRemovalHasADeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newFake(t)
		before := build(func(b *plan.Builder) { b.Add(plan.Dir{Path: "/d"}) })
		converge(t, newLoop(h), before, plan.Plan{})
		stuck := &stuckHost{Host: h, times: 2}
		begun := time.Now()
		converge(t, newLoop(stuck), plan.Plan{}, before)
		if took := time.Since(begun); took < 2*time.Minute || took > 3*time.Minute {
			t.Errorf("two hanging attempts took %s, want one minute each", took)
		}
	})
}

// stuckHost hangs in the first calls of Do.
type stuckHost struct {
	reconcile.Host
	times int
}

func (s *stuckHost) Do(ctx context.Context, step plan.Step, e plan.Entry) error {
	if s.times > 0 {
		s.times--
		<-ctx.Done()
		return ctx.Err()
	}
	return s.Host.Do(ctx, step, e)
}

// A failing removal blocks the removal of its needs, but neither other removals nor the new plan. The run
// is not done before everything is removed.
func TestStuckRemovalHoldsUpLittle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newFake(t)
		before := build(func(b *plan.Builder) {
			dir := b.Add(plan.Dir{Path: "/needed"})
			b.Add(plan.Dir{Path: "/stuck"}, dir)
			b.Add(plan.Dir{Path: "/other"})
		})
		l := newLoop(h)
		converge(t, l, before, plan.Plan{})
		l.Board.Reset()
		h.FailObserve("dir//stuck", errors.New("I/O error"), -1)
		done := make(chan error, 1)
		want := build(func(b *plan.Builder) { b.Add(plan.Dir{Path: "/new"}) })
		go func() { done <- l.Converge(t.Context(), want, before) }()
		time.Sleep(time.Second) // synctest time
		synctest.Wait()
		for path, there := range map[string]bool{"/new": true, "/other": false, "/stuck": true, "/needed": true} {
			if _, _, ok := h.Read(path); ok != there {
				t.Errorf("%s: got exists %t, want %t", path, ok, there)
			}
		}
		if s := phase(l.Board, "dir//needed"); s.Phase != reconcile.Waiting || s.What != "removal of dir//stuck" {
			t.Errorf("got status %+v", s)
		}
		if s := phase(l.Board, "dir//new"); s.Phase != reconcile.Ready {
			t.Errorf("got status %+v", s)
		}
		select {
		case err := <-done:
			t.Errorf("Converge returned before everything was removed: %v", err)
		default:
		}
		h.FailObserve("dir//stuck", nil, 0)
		if err := <-done; err != nil {
			t.Error(err)
		}
		if all, _ := l.Board.All(); len(all) != 1 {
			t.Errorf("got items %+v", all)
		}
	})
}
