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
	"github.com/slipway-project/slipway/internal/core/wait"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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

func manager() *rollout.Manager { return rollout.New(slog.New(slog.DiscardHandler), time.Now) }

// run runs a manager until stop or the test's end, whichever is first.
func (w *world) run(m *rollout.Manager, name string) (stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := m.Run(ctx, w.cluster(name)); err != nil {
			w.t.Error(err)
		}
	}()
	synctest.Wait() // the control role runs
	stop = func() { cancel(); <-done }
	w.t.Cleanup(stop)
	return stop
}

// said collects the reasons for waiting.
type said struct {
	mu  sync.Mutex // guards the field below
	all []string
}

func (s *said) waiting(w wait.For) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, w.What+" | "+w.Who)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.all, "\n")
}

func (w *world) take(m *rollout.Manager, item string, limit time.Duration, s *said) (release func(), err error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), limit)
	defer cancel()
	return m.Acquire(ctx, item, s.waiting)
}

// taken acquires a lease that is free.
func (w *world) taken(m *rollout.Manager, item string) (release func()) {
	w.t.Helper()
	release, err := w.take(m, item, time.Second, &said{})
	if err != nil {
		w.t.Fatal(err)
	}
	return release
}

func TestOneAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var at, most atomic.Int32
		var work sync.WaitGroup
		for _, name := range []string{"a", "b", "c"} {
			m := manager()
			w.run(m, name)
			work.Go(func() {
				for _, item := range []string{"unit/etcd", "unit/kube-apiserver"} {
					release, err := w.take(m, item, time.Hour, &said{})
					if err != nil {
						t.Error(err)
						return
					}
					most.Store(max(most.Load(), at.Add(1)))
					time.Sleep(time.Minute) // longer than a lease lives without renewal
					at.Add(-1)
					release()
				}
			})
		}
		work.Wait()
		if most.Load() != 1 {
			t.Errorf("got %d holders at once, want 1", most.Load())
		}
	})
}

// Items of one machine share its lease: the others see one machine at work.
func TestItemsOfOneMachineShare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b := manager(), manager()
		w.run(a, "a")
		w.run(b, "b")
		first, second := w.taken(a, "unit/kube-scheduler"), w.taken(a, "unit/kube-controller-manager")
		first()
		var s said
		if _, err := w.take(b, "unit/etcd", time.Minute, &s); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("b acquired the lease while a was at work: %v", err)
		}
		if !strings.HasPrefix(s.String(), "a, which restarts unit/kube-scheduler since 00:") || !strings.HasSuffix(s.String(), "| a") {
			t.Errorf("b waits for %q", s.String())
		}
		second()
		release, err := w.take(b, "unit/etcd", 5*time.Second, &said{})
		if err != nil {
			t.Fatalf("a has released the lease: %v", err)
		}
		release()
	})
}

func TestDeadHolderLosesTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b := manager(), manager()
		dies := w.run(a, "a")
		w.run(b, "b")
		w.taken(a, "unit/etcd")
		dies()
		began := time.Now()
		if _, err := w.take(b, "unit/etcd", time.Hour, &said{}); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < 20*time.Second || took > 40*time.Second {
			t.Errorf("b waited %s for a dead holder, want 20s to 40s", took)
		}
	})
}

// The control role restarts with each plan. The lease outlives that, and the restart of the agent.
func TestHeldWhileRoleAndAgentRestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b := manager(), manager()
		stop := w.run(a, "a")
		w.run(b, "b")
		w.taken(a, "unit/etcd")
		stop()
		time.Sleep(5 * time.Second)
		stop = w.run(a, "a")
		if _, err := w.take(b, "unit/etcd", 2*time.Minute, &said{}); err == nil {
			t.Fatal("b acquired the lease that a still needs")
		}
		stop()
		w.unwell.Store("etcd of a, which is not healthy")
		w.run(manager(), "a") // the next agent
		if _, err := w.take(b, "unit/etcd", 50*time.Second, &said{}); err == nil {
			t.Fatal("b acquired the lease while what a had begun was not healthy")
		}
		w.unwell.Store("")
		if _, err := w.take(b, "unit/etcd", 5*time.Second, &said{}); err != nil {
			t.Fatalf("no error wanted once all are healthy: %v", err)
		}
	})
}

// An agent dies after it broke a component: the next agent keeps the lease until that is repaired, and does not acquire a lease that it does not hold.
func TestKeptUntilRepaired(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b := manager(), manager()
		dies := w.run(a, "a")
		w.run(b, "b")
		w.taken(a, "unit/etcd")
		w.unwell.Store("etcd of a, which is not healthy")
		dies()
		next := manager()
		release := next.Keep("unit/etcd")
		w.run(next, "a")
		if _, err := w.take(b, "unit/etcd", time.Hour, &said{}); err == nil {
			t.Fatal("b acquired the lease before what a had broken was repaired")
		}
		w.unwell.Store("")
		release()
		began := time.Now()
		if _, err := w.take(b, "unit/etcd", time.Hour, &said{}); err != nil || time.Since(began) > 5*time.Second {
			t.Errorf("b waited %s for what was repaired: %v", time.Since(began), err)
		}
		next.Keep("unit/etcd") // b holds it now
		time.Sleep(time.Minute)
		if _, err := w.take(next, "unit/kube-scheduler", time.Minute, &said{}); err == nil {
			t.Error("next acquired the lease that b holds")
		}
	})
}

// The lease is kept for all items that it was acquired for, over the death of the agent and also while the cluster is well. An item
// that it was not acquired for does not keep it: that item may never become ready.
func TestKeptForWhatItWasAcquiredFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b := manager(), manager()
		dies := w.run(a, "a")
		w.run(b, "b")
		w.taken(a, "unit/kube-apiserver")
		w.taken(a, "unit/kube-controller-manager")
		synctest.Wait() // the record names both
		dies()
		next := manager()
		next.Keep("unit/kube-scheduler")
		ready := next.Keep("unit/kube-controller-manager")
		w.run(next, "a")
		if _, err := w.take(b, "unit/etcd", time.Hour, &said{}); err == nil {
			t.Fatal("b acquired the lease while what a had replaced was not ready")
		}
		ready()
		began := time.Now()
		if _, err := w.take(b, "unit/etcd", time.Hour, &said{}); err != nil || time.Since(began) > 5*time.Second {
			t.Errorf("b waited %s for what was not replaced under a's lease: %v", time.Since(began), err)
		}
	})
}

func TestUnhealthyPeerDelaysRestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := manager()
		w.run(a, "a")
		w.unwell.Store("etcd of b, which is not healthy")
		var s said
		began := time.Now()
		if _, err := w.take(a, "unit/etcd", time.Hour, &s); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < 2*time.Minute || took > 3*time.Minute {
			t.Errorf("waited %s for a control plane that stays unhealthy, want 2m to 3m", took)
		}
		if !strings.HasPrefix(s.String(), "etcd of b, which is not healthy (this machine continues at ") {
			t.Errorf("waits for %q", s.String())
		}
	})
}

// Records that do not answer are not a free lease: the caller waits and says so, and acquires the lease when they answer again.
func TestRecordsDoNotAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := manager()
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
			t.Errorf("got the lease after %s, want 1h", took)
		}
		if !strings.Contains(s.String(), "connection refused | the API servers") {
			t.Errorf("waits for %q", s.String())
		}
	})
}

// The answer to an acquisition is lost and no item asks again: the lease that the record gives to this machine is released all the same.
func TestAcquiredWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := manager()
		w.run(a, "a")
		w.taken(a, "unit/etcd")()
		time.Sleep(time.Minute) // it is released
		w.store.SetFault(func(op registrytest.Op) (f registrytest.Fault) {
			if op.Verb == "put" {
				f.Lost = errors.New("the connection is lost")
			}
			return f
		})
		if _, err := w.take(a, "unit/etcd", 100*time.Millisecond, &said{}); err == nil {
			t.Fatal("acquired the lease without an answer")
		}
		w.store.SetFault(nil)
		time.Sleep(2 * time.Second)
		b := manager()
		w.run(b, "b")
		w.taken(b, "unit/etcd")()
	})
}

func TestSingleControlPlaneNeedsNoLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := manager()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var s said
		took := make(chan error)
		go func() {
			_, err := m.Acquire(ctx, "unit/etcd", s.waiting)
			took <- err
		}()
		time.Sleep(time.Minute)
		if s.String() != "the control role of this machine, which asks the others | the agent of this machine" {
			t.Errorf("before the control role runs: %q", s.String())
		}
		go func() { _ = m.Run(ctx, rollout.Cluster{Self: "a"}) }()
		if err := <-took; err != nil {
			t.Error(err)
		}
	})
}

// records return err and count requests.
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
