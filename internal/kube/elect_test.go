// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// A leader that is cut off stops before another candidate becomes the leader, and its later writes are refused.
func TestElectCutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := &leaseAPI{}
		a := api.candidate(t, "a")
		if !a.now().leads {
			t.Fatal("a is the only candidate and is not the leader")
		}
		b := api.candidate(t, "b")
		time.Sleep(time.Minute)
		if !a.now().leads || b.now().leads {
			t.Fatal("a is not the only leader")
		}
		guarded, err := a.client.Fenced(a.now().fence)
		if err != nil {
			t.Fatal(err)
		}
		if err := put(t.Context(), guarded, "in-time"); err != nil {
			t.Fatal(err)
		}
		cut := time.Now()
		a.set(func(d *link) { d.cut = true })
		time.Sleep(10*time.Second + time.Millisecond)
		if a.now().leads {
			t.Error("a is still the leader 10 s after it was cut off")
		}
		time.Sleep(10 * time.Second)
		if !b.now().leads {
			t.Fatalf("b is not the leader %s after a was cut off", time.Since(cut))
		}
		if gap := b.now().terms[0].begun.Sub(a.now().terms[0].ended); gap < 3*time.Second {
			t.Errorf("b became the leader %s after a had stopped, want at least 3s", gap)
		}
		a.set(func(d *link) { d.cut = false })
		if err := put(t.Context(), guarded, "late"); !errors.Is(err, ErrFenced) {
			t.Errorf("late write: got %v, want ErrFenced", err)
		}
		if diff := cmp.Diff([]string{"in-time"}, api.writes); diff != "" {
			t.Errorf("writes (-want +got):\n%s", diff)
		}
		time.Sleep(time.Minute)
		if a.now().leads || len(b.now().terms) != 1 {
			t.Error("a took the leadership from b")
		}
		if calls := a.now().follow; calls[len(calls)-1] != "b" {
			t.Errorf("Follow of a: got %q, want b last", calls)
		}
	})
}

// A released lease is acquired at once. After a crash, a candidate with the same identity acquires its own lease at once.
func TestElectHandOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := &leaseAPI{}
		a, b := api.candidate(t, "a"), (*candidate)(nil)
		a.now()
		b = api.candidate(t, "b")
		time.Sleep(time.Second)
		if got := b.now().follow; !cmp.Equal(got, []string{"a"}) {
			t.Errorf("Follow of b: got %q, want a", got)
		}
		a.stop()
		left := time.Now()
		time.Sleep(2 * time.Second)
		if !b.now().leads {
			t.Fatal("b is not the leader 2 s after a has stopped")
		}
		t.Logf("b became the leader %s after a stopped", b.now().terms[0].begun.Sub(left))

		b.set(func(d *link) { d.cut = true }) // a crash: the lease is not released
		b.stop()
		time.Sleep(3 * time.Second)
		begun := time.Now()
		again := api.candidate(t, "b")
		if !again.now().leads || time.Since(begun) != 0 {
			t.Error("b did not acquire its own lease at once")
		}
	})
}

// Lost responses do not end the leadership.
func TestElectLostResponses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := &leaseAPI{}
		a := api.candidate(t, "a")
		a.now()
		b := api.candidate(t, "b")
		for range 10 {
			time.Sleep(9 * time.Second)
			a.set(func(d *link) { d.deaf = 2 })
		}
		time.Sleep(30 * time.Second)
		if first, other := a.now(), b.now(); !first.leads || len(first.terms) != 1 || len(other.terms) != 0 {
			t.Errorf("got a leads=%t, %d terms of a and %d of b, want one term of a", first.leads, len(first.terms), len(other.terms))
		}
		if n := api.conflicts(); n == 0 {
			t.Error("no renewal has conflicted with one whose response was lost")
		}
	})
}

// Deleting the lease or writing another holder into it ends the term.
func TestElectTaken(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*leaseAPI){
		"deleted": func(a *leaseAPI) { a.lease = nil },
		"taken": func(a *leaseAPI) {
			a.version++
			o := unstructured.Unstructured{Object: a.lease}
			o.SetResourceVersion(fmt.Sprint(a.version))
			_ = unstructured.SetNestedField(o.Object, "z", "spec", "holderIdentity")
		},
		"taken by the same identity": func(a *leaseAPI) {
			a.version++
			o := unstructured.Unstructured{Object: a.lease}
			o.SetResourceVersion(fmt.Sprint(a.version))
			_ = unstructured.SetNestedField(o.Object, int64(7), "spec", "leaseTransitions")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				api := &leaseAPI{}
				a := api.candidate(t, "a")
				a.now()
				time.Sleep(time.Second)
				api.mu.Lock()
				change(api)
				api.mu.Unlock()
				time.Sleep(2 * time.Second)
				if a.now().terms[0].ended.IsZero() {
					t.Error("a is still the leader")
				}
				time.Sleep(time.Minute)
				if !a.now().leads {
					t.Error("a did not become the leader again")
				}
			})
		})
	}
}

// Elect returns the result of lead and releases the lease.
func TestElectWorkEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := &leaseAPI{}
		c, _ := api.client(t)
		broken := errors.New("broken")
		conf := ElectConfig{Namespace: "kube-system", Name: "x", Identity: "a"}
		if err := c.Elect(t.Context(), conf, func(context.Context, Fence) error { return broken }); !errors.Is(err, broken) {
			t.Errorf("Elect: got %v, want %v", err, broken)
		}
		if holder := str(api.lease, "spec", "holderIdentity"); holder != "" {
			t.Errorf("holder after the release: got %q, want none", holder)
		}
		for name, conf := range map[string]ElectConfig{
			"no identity": {Name: "x"},
			"wrong times": {Name: "x", Identity: "a", Lease: time.Second, Renew: time.Second, Retry: time.Millisecond},
		} {
			if err := c.Elect(t.Context(), conf, nil); err == nil || !strings.Contains(err.Error(), "want an identity") {
				t.Errorf("%s: got %v", name, err)
			}
		}
	})
}

// Writes are refused although the context has not ended, as in a process that was stopped and continued.
func TestFencedBeforeTheContextEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := &leaseAPI{}
		c, _ := api.client(t)
		h := &held{lease: 15 * time.Second, renew: 10 * time.Second}
		h.renewed(time.Now())
		guarded, err := c.Fenced(Fence{h})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10*time.Second - time.Nanosecond)
		if err := put(t.Context(), guarded, "last"); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Nanosecond)
		if err := put(t.Context(), guarded, "too-late"); !errors.Is(err, ErrFenced) {
			t.Errorf("write after 10 s without a renewal: got %v, want ErrFenced", err)
		}
		if _, err := guarded.dyn.Resource(leases).Namespace("x").Get(t.Context(), "x", metav1.GetOptions{}); errors.Is(err, ErrFenced) {
			t.Error("a read was refused")
		}
		h.renewed(time.Now())
		if err := put(t.Context(), guarded, "renewed"); err != nil {
			t.Error(err)
		}
		h.finish()
		for name, fence := range map[string]Fence{"finished term": {h}, "zero fence": {}} {
			guarded, err := c.Fenced(fence)
			if err != nil {
				t.Fatal(err)
			}
			if err := put(t.Context(), guarded, "never"); !errors.Is(err, ErrFenced) {
				t.Errorf("%s: got %v", name, err)
			}
		}
		if diff := cmp.Diff([]string{"last", "renewed"}, api.writes); diff != "" {
			t.Errorf("writes (-want +got):\n%s", diff)
		}
	})
}

// A write in flight is cancelled when the lease expires.
func TestFencedRequestEndsWithTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := &leaseAPI{}
		c, d := api.client(t)
		d.set(func(d *link) { d.cut = true })
		h := &held{lease: 15 * time.Second, renew: 10 * time.Second}
		begun := time.Now()
		h.renewed(begun)
		guarded, err := c.Fenced(Fence{h})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(9 * time.Second)
		err = put(t.Context(), guarded, "hangs")
		if after := time.Since(begun); err == nil || after != 15*time.Second {
			t.Errorf("a hanging write ended after %s with %v, want an error after 15s", after, err)
		}
	})
}

// With random connection failures, two candidates are never certain to be the leader at the same time.
func TestElectNeverTwo(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { neverTwo(t, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

func neverTwo(t *testing.T, chance *rand.Rand) {
	api, led := &leaseAPI{}, map[int]bool{}
	var all []*candidate
	for i := range 5 {
		all = append(all, api.candidate(t, fmt.Sprint("c", i)))
	}
	for range 400 {
		time.Sleep(time.Duration(chance.IntN(2000)) * time.Millisecond)
		if chance.IntN(4) == 0 {
			all[chance.IntN(len(all))].set(func(d *link) { d.cut, d.deaf = chance.IntN(2) == 0, chance.IntN(3) })
		}
		leaders := 0
		for i, c := range all {
			now := c.now()
			if _, ok := now.fence.Until(); ok {
				led[i] = true
				leaders++
			} else if now.leads {
				t.Fatalf("c%d works without a valid fence", i)
			}
		}
		if leaders > 1 {
			t.Fatalf("got %d leaders at the same time", leaders)
		}
	}
	if len(led) < 2 {
		t.Errorf("only %v have ever been the leader: the failures have no effect", led)
	}
}
