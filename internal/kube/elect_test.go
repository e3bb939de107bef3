// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// A leader that is cut off stops before another begins, and its late writes are refused, whatever it does.
func TestElectCutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := &leaseAPI{}
		a := api.candidate(t, "a")
		if !a.now().leads {
			t.Fatal("nobody else is there, and a does not lead")
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
		a.set(func(d *door) { d.shut = true })
		time.Sleep(10*time.Second + time.Millisecond)
		if a.now().leads {
			t.Error("a leads 10 s after it was cut off")
		}
		time.Sleep(10 * time.Second)
		if !b.now().leads {
			t.Fatalf("b does not lead %s after a was cut off", time.Since(cut))
		}
		if gap := b.now().terms[0].begun.Sub(a.now().terms[0].ended); gap < 3*time.Second {
			t.Errorf("b began %s after a had ended", gap)
		}
		a.set(func(d *door) { d.shut = false })
		if err := put(t.Context(), guarded, "late"); !errors.Is(err, ErrFenced) {
			t.Errorf("a late write: %v", err)
		}
		if diff := cmp.Diff([]string{"in-time"}, api.writes); diff != "" {
			t.Errorf("written (-want +got):\n%s", diff)
		}
		time.Sleep(time.Minute)
		if a.now().leads || len(b.now().terms) != 1 {
			t.Error("a took the lead from b")
		}
		if said := a.now().said; said[len(said)-1] != "b" {
			t.Errorf("a says %q", said)
		}
	})
}

// Given back, the lease is taken at once; the same identity takes its own back at once after a crash.
func TestElectHandOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := &leaseAPI{}
		a, b := api.candidate(t, "a"), (*candidate)(nil)
		a.now()
		b = api.candidate(t, "b")
		time.Sleep(time.Second)
		if got := b.now().said; !cmp.Equal(got, []string{"a"}) {
			t.Errorf("b says %q", got)
		}
		a.stop()
		left := time.Now()
		time.Sleep(2 * time.Second)
		if !b.now().leads {
			t.Fatal("b does not lead 2 s after a has gone")
		}
		t.Logf("b leads %s after a has gone", b.now().terms[0].begun.Sub(left))

		b.set(func(d *door) { d.shut = true }) // crashed: it gives nothing back
		b.stop()
		time.Sleep(3 * time.Second)
		begun := time.Now()
		again := api.candidate(t, "b")
		if !again.now().leads || time.Since(begun) != 0 {
			t.Error("b does not take its own lease back at once")
		}
	})
}

// Answers that are lost cost no leadership.
func TestElectLostAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := &leaseAPI{}
		a := api.candidate(t, "a")
		a.now()
		b := api.candidate(t, "b")
		for range 10 {
			time.Sleep(9 * time.Second)
			a.set(func(d *door) { d.deaf = 2 })
		}
		time.Sleep(30 * time.Second)
		if first, other := a.now(), b.now(); !first.leads || len(first.terms) != 1 || len(other.terms) != 0 {
			t.Errorf("a leads: %t, terms %d and %d", first.leads, len(first.terms), len(other.terms))
		}
		if n := api.conflicts(); n == 0 {
			t.Error("no renewal has met one whose answer was lost")
		}
	})
}

// Somebody who deletes the lease or writes another's name into it ends the term.
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
		"taken by its own name": func(a *leaseAPI) {
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
					t.Error("a leads on")
				}
				time.Sleep(time.Minute)
				if !a.now().leads {
					t.Error("a does not come back")
				}
			})
		})
	}
}

// What lead returns by itself is what Elect returns, and the lease is free.
func TestElectWorkEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := &leaseAPI{}
		c, _ := api.client(t)
		broken := errors.New("broken")
		conf := ElectConfig{Namespace: "kube-system", Name: "x", Identity: "a"}
		if err := c.Elect(t.Context(), conf, func(context.Context, Fence) error { return broken }); !errors.Is(err, broken) {
			t.Errorf("it ends with %v", err)
		}
		if holder := str(api.lease, "spec", "holderIdentity"); holder != "" {
			t.Errorf("%q has the lease", holder)
		}
		for name, conf := range map[string]ElectConfig{
			"nobody":      {Name: "x"},
			"wrong times": {Name: "x", Identity: "a", Lease: time.Second, Renew: time.Second, Retry: time.Millisecond},
		} {
			if err := c.Elect(t.Context(), conf, nil); err == nil || !strings.Contains(err.Error(), "want an identity") {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}
