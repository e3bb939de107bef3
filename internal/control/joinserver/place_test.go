// SPDX-License-Identifier: Apache-2.0

package joinserver_test

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/slipway-project/slipway/internal/control/joinserver"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/node/joinclient"
	"github.com/slipway-project/slipway/internal/rpc"
	"github.com/slipway-project/slipway/internal/testkit"
)

// copyAt is a machine with the same key at another address.
func (m *machine) copyAt(address string) *machine {
	c := m.w.machine(address)
	c.key = m.key
	return c
}

func (w *world) worker(t *testing.T) admission.Node {
	t.Helper()
	n, err := w.registry.Node(t.Context(), "dev-worker-0")
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (w *world) count(reason joinserver.Reason) (n int) {
	for _, e := range w.audit() {
		if e.Reason == reason {
			n++
		}
	}
	return n
}

// greets opens the node's stream by hand.
func (m *machine) greets(t *testing.T) *syncTalk { return m.sync(t).greeted() }

// A worker's stream keeps a copy of its key out, whatever Kubernetes says; the copy is remembered, approved, and then the first one's
// stream ends.
func TestTwoStreams(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rpc.Limits{})
	first := worker(w)
	n := first.stays(t)
	testkit.Eventually(t, "the first stream", func() bool { return n.taken.Load() > 0 })
	second := first.copyAt("127.0.0.21")
	for range 2 {
		if err := second.greets(t).end(); status.Code(err) != codes.FailedPrecondition {
			t.Fatalf("a copy was told %v", err)
		}
	}
	if got := w.worker(t); got.Address != first.address || got.Elsewhere != second.address || !got.AsksElsewhere(time.Now()) {
		t.Errorf("the record: %+v", got)
	}
	if n := w.count(joinserver.Reason(admission.KeyInUse)); n != 2 {
		t.Errorf("%d refusals", n)
	}
	synced := w.count(joinserver.Synced)
	if _, err := w.registry.Approve(t.Context(), "dev-worker-0"); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the end of the first stream", func() bool { return w.count(joinserver.Reason(admission.KeyInUse)) > 2 })
	second.greets(t)
	testkit.Eventually(t, "the second one's stream", func() bool { return w.count(joinserver.Synced) > synced })
	if got := w.worker(t); got.Address != second.address {
		t.Errorf("the record: %+v", got)
	}
}

// A worker that is off may come back at another address, by joining anew or with all its state; its first place is another's then.
func TestMovedWorker(t *testing.T) {
	t.Parallel()
	for name, come := range map[string]func(t *testing.T, m *machine){
		"joins": func(t *testing.T, m *machine) { m.join(t) },
		"syncs": func(t *testing.T, m *machine) { m.greets(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, rpc.Limits{})
			first := worker(w)
			first.join(t)
			second := first.copyAt("127.0.0.21")
			come(t, second)
			testkit.Eventually(t, "the record's new address", func() bool { return w.worker(t).Address == second.address })
			w.alive.Store(true)
			if err := first.greets(t).end(); status.Code(err) != codes.FailedPrecondition {
				t.Errorf("at its old place it was told %v", err)
			}
		})
	}
}

// While nobody can say whether the worker is alive, nobody is judged, and nothing is remembered.
func TestNobodyKnowsWhetherItIsAlive(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rpc.Limits{})
	first := worker(w)
	first.join(t)
	w.silent.Store(true)
	second := first.copyAt("127.0.0.21")
	if err := second.greets(t).end(); status.Code(err) != codes.Unavailable {
		t.Errorf("it was told %v", err)
	}
	if got := w.worker(t); got.Address != first.address || got.Elsewhere.IsValid() {
		t.Errorf("the record: %+v", got)
	}
	w.silent.Store(false)
	second.greets(t)
	testkit.Eventually(t, "the record's new address", func() bool { return w.worker(t).Address == netip.MustParseAddr("127.0.0.21") })
	if !slices.ContainsFunc(w.audit(), func(e joinserver.Entry) bool { return e.Reason == joinserver.Moved }) {
		t.Error("the audit does not say that it has moved")
	}
}

// Where the spec says so, a machine takes the place of one that nobody hears from any more by its address alone, and the one that had
// the place does not come back by its key. While that one lives, or nobody knows, nothing happens.
func TestReplacedByAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rpc.Limits{})
	here := netip.MustParseAddr("127.0.0.30")
	place := specNode("dev-cattle-0", "cattle", 5)
	place.Address = here
	if err := w.registry.Register(t.Context(), []admission.Node{place}); err != nil {
		t.Fatal(err)
	}
	first, second := w.machine(here.String()), w.machine(here.String())
	if got := first.join(t).Ticket.Plan.Node; got != "dev-cattle-0" {
		t.Fatalf("the first one to come is %s", got)
	}
	knock := func(want admission.Reason) {
		t.Helper()
		before := w.count(joinserver.Reason(want))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan struct{})
		go func() { defer close(ended); _, _ = joinclient.Join(ctx, second.config()) }()
		testkit.Eventually(t, string(want), func() bool { return w.count(joinserver.Reason(want)) > before })
		cancel()
		<-ended
	}
	w.alive.Store(true)
	knock(admission.NodeAlive)
	w.alive.Store(false)
	if got := second.join(t).Ticket.Plan.Node; got != "dev-cattle-0" {
		t.Errorf("it came as %s", got)
	}
	n, err := w.registry.Node(t.Context(), "dev-cattle-0")
	if err != nil || n.Key != second.pin() || n.Address != here || n.PodCIDR != place.PodCIDR {
		t.Errorf("the record: %+v, %v", n, err)
	}
	second = first
	knock(admission.KeyRemoved)
}
