// SPDX-License-Identifier: Apache-2.0

package rollout_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/control/registry/registrytest"
	"github.com/slipway-project/slipway/internal/control/rollout"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const turn = "control-plane"

// world is the records of a cluster and its control planes.
type world struct {
	t      *testing.T
	store  *registrytest.Memory
	unwell atomic.Value // string
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, store: registrytest.NewMemory()}
	w.unwell.Store("")
	return w
}

func (w *world) cluster(name string) rollout.Cluster {
	return rollout.Cluster{
		Self: name, Several: true, Records: registry.New(w.store, time.Now),
		Unwell: func(context.Context, bool) string { return w.unwell.Load().(string) },
	}
}

func keeper() *rollout.Keeper { return rollout.New(turn, slog.New(slog.DiscardHandler), time.Now) }

// run runs a keeper until stop or the test's end, whichever is first.
func (w *world) run(k *rollout.Keeper, name string) (stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := k.Run(ctx, w.cluster(name)); err != nil {
			w.t.Error(err)
		}
	}()
	synctest.Wait() // it knows its control role
	stop = func() { cancel(); <-done }
	w.t.Cleanup(stop)
	return stop
}

// said collects the reasons that somebody waited for.
type said struct {
	mu  sync.Mutex // guards the field below
	all []string
}

func (s *said) waiting(reason, provider string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, reason+" | "+provider)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.all, "\n")
}

func (w *world) take(k *rollout.Keeper, item string, limit time.Duration, s *said) (pass func(), err error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), limit)
	defer cancel()
	return k.Take(ctx, turn, item, s.waiting)
}

// taken is a turn that nobody keeps from the keeper.
func (w *world) taken(k *rollout.Keeper, item string) (pass func()) {
	w.t.Helper()
	pass, err := w.take(k, item, time.Second, &said{})
	if err != nil {
		w.t.Fatal(err)
	}
	return pass
}

func TestOneAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var at, most atomic.Int32
		var work sync.WaitGroup
		for _, name := range []string{"a", "b", "c"} {
			k := keeper()
			w.run(k, name)
			work.Go(func() {
				for _, item := range []string{"unit/etcd", "unit/kube-apiserver"} {
					pass, err := w.take(k, item, time.Hour, &said{})
					if err != nil {
						t.Error(err)
						return
					}
					most.Store(max(most.Load(), at.Add(1)))
					time.Sleep(time.Minute) // longer than an unrenewed turn lives
					at.Add(-1)
					pass()
				}
			})
		}
		work.Wait()
		if most.Load() != 1 {
			t.Errorf("%d control planes at once", most.Load())
		}
	})
}

// Items of one machine share its turn: the others see one machine at work.
func TestItemsOfOneMachineShare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b := keeper(), keeper()
		w.run(a, "a")
		w.run(b, "b")
		first, second := w.taken(a, "unit/kube-scheduler"), w.taken(a, "unit/kube-controller-manager")
		first()
		var s said
		if _, err := w.take(b, "unit/etcd", time.Minute, &s); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("b got the turn while a was at work: %v", err)
		}
		if !strings.HasPrefix(s.String(), "a restarts unit/kube-scheduler since 00:") || !strings.HasSuffix(s.String(), "| a") {
			t.Errorf("b was told %q", s.String())
		}
		second()
		pass, err := w.take(b, "unit/etcd", 5*time.Second, &said{})
		if err != nil {
			t.Fatalf("a has passed its turn on: %v", err)
		}
		pass()
	})
}

func TestWhoDiesLosesIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b := keeper(), keeper()
		dies := w.run(a, "a")
		w.run(b, "b")
		w.taken(a, "unit/etcd")
		dies()
		began := time.Now()
		if _, err := w.take(b, "unit/etcd", time.Hour, &said{}); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < 20*time.Second || took > 40*time.Second {
			t.Errorf("b waited %s for a dead holder", took)
		}
	})
}

// The control role ends and begins with each plan; a turn outlives that, and so does what an agent held that began anew.
func TestHeldOverRoleAndAgent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b := keeper(), keeper()
		stop := w.run(a, "a")
		w.run(b, "b")
		w.taken(a, "unit/etcd")
		stop()
		time.Sleep(5 * time.Second)
		stop = w.run(a, "a")
		if _, err := w.take(b, "unit/etcd", 2*time.Minute, &said{}); err == nil {
			t.Fatal("b got the turn that a still needs")
		}
		stop()
		w.unwell.Store("etcd of a, which is not healthy")
		w.run(keeper(), "a") // the next agent
		if _, err := w.take(b, "unit/etcd", 50*time.Second, &said{}); err == nil {
			t.Fatal("b got the turn while what a had begun was not well")
		}
		w.unwell.Store("")
		if _, err := w.take(b, "unit/etcd", 5*time.Second, &said{}); err != nil {
			t.Fatalf("all are well: %v", err)
		}
	})
}

// An agent dies over what it has broken: the next one keeps the turn until that is mended, and asks for none that it has not.
func TestHeldUntilMended(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b := keeper(), keeper()
		dies := w.run(a, "a")
		w.run(b, "b")
		w.taken(a, "unit/etcd")
		w.unwell.Store("etcd of a, which is not healthy")
		dies()
		next := keeper()
		pass := next.Hold(turn, "unit/etcd")
		w.run(next, "a")
		if _, err := w.take(b, "unit/etcd", time.Hour, &said{}); err == nil {
			t.Fatal("b got the turn while what a had broken was not mended")
		}
		w.unwell.Store("")
		pass()
		began := time.Now()
		if _, err := w.take(b, "unit/etcd", time.Hour, &said{}); err != nil || time.Since(began) > 5*time.Second {
			t.Errorf("b waited %s for what was mended: %v", time.Since(began), err)
		}
		next.Hold(turn, "unit/etcd") // it is b's now
		time.Sleep(time.Minute)
		if _, err := w.take(next, "unit/kube-scheduler", time.Minute, &said{}); err == nil {
			t.Error("whoever holds what it has not got the turn")
		}
	})
}

// All items that the turn was taken for are held over an agent's death, also when the cluster says that it is well; what was not
// taken in this turn keeps it from nobody, for it may never become ready.
func TestHeldForWhatItWasTakenFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b := keeper(), keeper()
		dies := w.run(a, "a")
		w.run(b, "b")
		w.taken(a, "unit/kube-apiserver")
		w.taken(a, "unit/kube-controller-manager")
		synctest.Wait() // the record knows both
		dies()
		next := keeper()
		next.Hold(turn, "unit/kube-scheduler")
		ready := next.Hold(turn, "unit/kube-controller-manager")
		w.run(next, "a")
		if _, err := w.take(b, "unit/etcd", time.Hour, &said{}); err == nil {
			t.Fatal("b got the turn while what a had exchanged was not ready")
		}
		ready()
		began := time.Now()
		if _, err := w.take(b, "unit/etcd", time.Hour, &said{}); err != nil || time.Since(began) > 5*time.Second {
			t.Errorf("b waited %s for what was not exchanged in a's turn: %v", time.Since(began), err)
		}
	})
}

func TestUnwell(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := keeper()
		w.run(a, "a")
		w.unwell.Store("etcd of b, which is not healthy")
		var s said
		began := time.Now()
		if _, err := w.take(a, "unit/etcd", time.Hour, &s); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < 2*time.Minute || took > 3*time.Minute {
			t.Errorf("it waited %s for a control plane that stays unwell", took)
		}
		if !strings.HasPrefix(s.String(), "etcd of b, which is not healthy (at ") {
			t.Errorf("told %q", s.String())
		}
	})
}

// No answer is not no: it waits, says so, and gets its turn when there are answers again.
func TestRecordsDoNotAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := keeper()
		w.run(a, "a")
		w.store.SetFault(func(registrytest.Op) registrytest.Fault {
			return registrytest.Fault{Err: errors.New("connection refused")}
		})
		time.AfterFunc(time.Hour, func() { w.store.SetFault(nil) })
		var s said
		began := time.Now()
		if _, err := w.take(a, "unit/etcd", 2*time.Hour, &s); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < time.Hour || took > time.Hour+5*time.Second {
			t.Errorf("it waited %s", took)
		}
		if !strings.Contains(s.String(), "connection refused | the API servers") {
			t.Errorf("told %q", s.String())
		}
	})
}

// The answer to a take is lost, and nobody here asks again: what the record says of this machine is passed on all the same.
func TestTakenWithoutKnowing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := keeper()
		w.run(a, "a")
		w.taken(a, "unit/etcd")()
		time.Sleep(time.Minute) // it is passed on
		w.store.SetFault(func(op registrytest.Op) (f registrytest.Fault) {
			if op.Verb == "put" {
				f.Lost = errors.New("the connection is lost")
			}
			return f
		})
		if _, err := w.take(a, "unit/etcd", 100*time.Millisecond, &said{}); err == nil {
			t.Fatal("it got the turn without an answer")
		}
		w.store.SetFault(nil)
		time.Sleep(2 * time.Second)
		b := keeper()
		w.run(b, "b")
		w.taken(b, "unit/etcd")()
	})
}

func TestAloneNobodyIsAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := keeper()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var s said
		took := make(chan error)
		go func() {
			_, err := k.Take(ctx, turn, "unit/etcd", s.waiting)
			took <- err
		}()
		time.Sleep(time.Minute)
		if s.String() != "the control role of this machine, which asks the others | the agent of this machine" {
			t.Errorf("before the control role runs: %q", s.String())
		}
		go func() { _ = k.Run(ctx, rollout.Cluster{Self: "a"}) }()
		if err := <-took; err != nil {
			t.Error(err)
		}
	})
}

func TestUnknownTurn(t *testing.T) {
	t.Parallel()
	if _, err := keeper().Take(t.Context(), "workers", "unit/kubelet", func(string, string) {}); err == nil || !strings.Contains(err.Error(), `"workers"`) {
		t.Errorf("an unknown turn: %v", err)
	}
}

// records answer as they are told.
type records struct {
	err   error
	asked int
}

func (r *records) Load(context.Context, string, string, any) (string, error) {
	r.asked++
	return fmt.Sprint(r.asked), r.err
}

func (r *records) Save(ctx context.Context, kind, name, _ string, _ any) (string, error) {
	return r.Load(ctx, kind, name, nil)
}
