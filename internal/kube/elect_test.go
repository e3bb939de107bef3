// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
)

// leaseAPI is an API server in memory that has one lease, so that candidates run in fake time.
type leaseAPI struct {
	mu      sync.Mutex // guards the fields below
	lease   map[string]any
	version int
	late    int      // writes of the lease that were refused
	writes  []string // names of what was written other than the lease
}

// door is one candidate's way to it.
type door struct {
	api *leaseAPI

	mu   sync.Mutex // guards the fields below
	shut bool       // nothing gets through
	deaf int        // so many writes are done, and their answers are lost
}

func (d *door) set(change func(*door)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(d)
}

func (d *door) RoundTrip(r *http.Request) (*http.Response, error) {
	d.mu.Lock()
	shut, deaf := d.shut, !d.shut && d.deaf > 0 && r.Method != http.MethodGet
	if deaf {
		d.deaf--
	}
	d.mu.Unlock()
	if shut {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	answer := d.api.serve(r)
	if deaf {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return answer, nil
}

// conflicts counts the writes that came after another that their writer did not know of.
func (a *leaseAPI) conflicts() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.late
}

func (a *leaseAPI) serve(r *http.Request) *http.Response {
	a.mu.Lock()
	defer a.mu.Unlock()
	var body map[string]any
	if r.Body != nil {
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			return answer(r, http.StatusBadRequest, nil)
		}
	}
	o := unstructured.Unstructured{Object: body}
	switch {
	case !strings.Contains(r.URL.Path, "/leases"):
		a.writes = append(a.writes, o.GetName())
		return answer(r, http.StatusOK, body)
	case r.Method == http.MethodGet && a.lease == nil, r.Method == http.MethodPut && a.lease == nil:
		return answer(r, http.StatusNotFound, failure("NotFound", http.StatusNotFound))
	case r.Method == http.MethodGet:
		return answer(r, http.StatusOK, a.lease)
	case r.Method == http.MethodPost && a.lease != nil:
		return answer(r, http.StatusConflict, failure("AlreadyExists", http.StatusConflict))
	case r.Method == http.MethodPut && o.GetResourceVersion() != fmt.Sprint(a.version):
		a.late++
		return answer(r, http.StatusConflict, failure("Conflict", http.StatusConflict))
	}
	a.version++
	o.SetResourceVersion(fmt.Sprint(a.version))
	a.lease = o.Object
	return answer(r, http.StatusOK, a.lease)
}

func failure(reason string, code int) map[string]any {
	return map[string]any{"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": reason, "code": code}
}

func answer(r *http.Request, code int, body map[string]any) *http.Response {
	text, _ := json.Marshal(body)
	return &http.Response{
		StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(text)), Request: r, ProtoMajor: 1, ProtoMinor: 1,
	}
}

func (a *leaseAPI) client(t *testing.T) (*Client, *door) {
	t.Helper()
	quiet()
	d := &door{api: a}
	c, err := newClient(&rest.Config{Host: "http://api.test", QPS: -1}, &http.Client{Transport: d}, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	return c, d
}

// candidate runs in the background and remembers its terms.
type candidate struct {
	*door
	client *Client
	stop   context.CancelFunc
	ended  chan error

	mu sync.Mutex // guards the field below
	state
}

type state struct {
	terms []tenure
	leads bool
	fence Fence
	said  []string
}

type tenure struct{ begun, ended time.Time }

func (a *leaseAPI) candidate(t *testing.T, name string) *candidate {
	t.Helper()
	c := &candidate{ended: make(chan error, 1)}
	c.client, c.door = a.client(t)
	var ctx context.Context
	ctx, c.stop = context.WithCancel(t.Context())
	follow := func(holder, why string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.said = append(c.said, strings.TrimSpace(holder+" "+why))
	}
	go func() {
		c.ended <- c.client.Elect(ctx, ElectConfig{Namespace: "kube-system", Name: "x", Identity: name, Follow: follow}, c.lead)
	}()
	t.Cleanup(func() {
		c.stop()
		if err := <-c.ended; !errors.Is(err, context.Canceled) {
			t.Errorf("%s ended with %v", name, err)
		}
	})
	return c
}

func (c *candidate) lead(ctx context.Context, fence Fence) error {
	c.mu.Lock()
	c.leads, c.fence = true, fence
	c.terms = append(c.terms, tenure{begun: time.Now()})
	c.mu.Unlock()
	<-ctx.Done()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leads = false
	c.terms[len(c.terms)-1].ended = time.Now()
	return ctx.Err()
}

// now is a copy, when nothing moves.
func (c *candidate) now() state {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return state{slices.Clone(c.terms), c.leads, c.fence, slices.Clone(c.said)}
}

// put is what a leader writes.
func put(ctx context.Context, c *Client, name string) error {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name}}}
	_, err := c.dyn.Resource(configMaps).Namespace("default").Create(ctx, o, metav1.CreateOptions{})
	return err
}

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
