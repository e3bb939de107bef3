// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A process that was stopped and goes on has a context that nobody has ended yet: its writes are refused all the same.
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
			t.Errorf("after 10 s without a renewal: %v", err)
		}
		if _, err := guarded.dyn.Resource(leases).Namespace("x").Get(t.Context(), "x", metav1.GetOptions{}); errors.Is(err, ErrFenced) {
			t.Error("it may not read")
		}
		h.renewed(time.Now())
		if err := put(t.Context(), guarded, "renewed"); err != nil {
			t.Error(err)
		}
		h.finish()
		for name, fence := range map[string]Fence{"a term that is over": {h}, "no term": {}} {
			guarded, err := c.Fenced(fence)
			if err != nil {
				t.Fatal(err)
			}
			if err := put(t.Context(), guarded, "never"); !errors.Is(err, ErrFenced) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if diff := cmp.Diff([]string{"last", "renewed"}, api.writes); diff != "" {
			t.Errorf("written (-want +got):\n%s", diff)
		}
	})
}

// A write under way ends with the lease, not later.
func TestFencedRequestEndsWithTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := &leaseAPI{}
		c, d := api.client(t)
		d.set(func(d *door) { d.shut = true })
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
			t.Errorf("a write that hangs ended after %s with %v", after, err)
		}
	})
}

// Many candidates whose doors open and shut at random: two are never certain to lead at once.
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
			all[chance.IntN(len(all))].set(func(d *door) { d.shut, d.deaf = chance.IntN(2) == 0, chance.IntN(3) })
		}
		sure := 0
		for i, c := range all {
			now := c.now()
			if _, ok := now.fence.Until(); ok {
				led[i] = true
				sure++
			} else if now.leads {
				t.Fatalf("c%d works and is not certain to lead", i)
			}
		}
		if sure > 1 {
			t.Fatalf("%d lead for certain", sure)
		}
	}
	if len(led) < 2 {
		t.Errorf("only %v have ever led: the doors do nothing", led)
	}
}
