// SPDX-License-Identifier: Apache-2.0

package joinserver_test

import (
	"context"
	"crypto/x509"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/attest"
	"github.com/slipway-project/slipway/internal/attest/key"
	"github.com/slipway-project/slipway/internal/certtest"
	"github.com/slipway-project/slipway/internal/control/joinserver"
	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/control/registry/registrytest"
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

// greets opens the node's stream and sends its hello.
func (m *machine) greets(t *testing.T) *syncTalk { return m.sync(t).greeted() }

// While a worker has a stream, a copy of its key is refused, whatever Kubernetes reports. The copy is recorded; once it is
// approved, the first stream ends.
func TestTwoStreams(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rpc.Limits{})
	first := worker(w)
	n := first.stays(t)
	testkit.Eventually(t, "the first stream", func() bool { return n.taken.Load() > 0 })
	second := first.copyAt("127.0.0.21")
	for range 2 {
		if err := second.greets(t).end(); status.Code(err) != codes.FailedPrecondition {
			t.Fatalf("a copy of the key: got %v, want FailedPrecondition", err)
		}
	}
	if got := w.worker(t); got.Address != first.address || got.Elsewhere != second.address || !got.AsksElsewhere(time.Now()) {
		t.Errorf("got record %+v", got)
	}
	if n := w.count(joinserver.Reason(admission.KeyInUse)); n != 2 {
		t.Errorf("got %d refusals, want 2", n)
	}
	synced := w.count(joinserver.Synced)
	if _, err := w.registry.Approve(t.Context(), "dev-worker-0"); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the end of the first stream", func() bool { return w.count(joinserver.Reason(admission.KeyInUse)) > 2 })
	second.greets(t)
	testkit.Eventually(t, "the second one's stream", func() bool { return w.count(joinserver.Synced) > synced })
	if got := w.worker(t); got.Address != second.address {
		t.Errorf("got record %+v", got)
	}
}

// A worker that was off may return at another address, with a new join or with all its state. Its first address is then
// refused.
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
				t.Errorf("at its old address: got %v, want FailedPrecondition", err)
			}
		})
	}
}

// While the API server does not say whether the worker is alive, a copy of its key gets no decision and is not recorded.
func TestUnknownWhetherAlive(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rpc.Limits{})
	first := worker(w)
	first.join(t)
	w.silent.Store(true)
	second := first.copyAt("127.0.0.21")
	if err := second.greets(t).end(); status.Code(err) != codes.Unavailable {
		t.Errorf("got %v, want Unavailable", err)
	}
	if got := w.worker(t); got.Address != first.address || got.Elsewhere.IsValid() {
		t.Errorf("got record %+v", got)
	}
	w.silent.Store(false)
	second.greets(t)
	testkit.Eventually(t, "the record's new address", func() bool { return w.worker(t).Address == netip.MustParseAddr("127.0.0.21") })
	if !slices.ContainsFunc(w.audit(), func(e joinserver.Entry) bool { return e.Reason == joinserver.Moved }) {
		t.Error("got no audit entry with the reason Moved")
	}
}

// In a pool with replacement by address, a machine replaces a dead one by its address alone, and the replaced machine is
// then refused. While the first one is alive, the second one is refused.
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
		t.Fatalf("got node %s, want dev-cattle-0", got)
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
		t.Errorf("got node %s, want dev-cattle-0", got)
	}
	n, err := w.registry.Node(t.Context(), "dev-cattle-0")
	if err != nil || n.Key != second.pin() || n.Address != here || n.PodCIDR != place.PodCIDR {
		t.Errorf("got record %+v, error %v", n, err)
	}
	second = first
	knock(admission.KeyRemoved)
}

// A machine may leave only after the end of its removal: until then its etcd member may still count, and the removal may
// be undone.
func TestRemoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rpc.Limits{})
	m := controlPlane(w)
	m.join(t)
	ask := func(limit time.Duration) (bool, error) {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		return joinclient.Removed(ctx, joinclient.SyncConfig{
			Endpoints: func() []netip.AddrPort { return []netip.AddrPort{w.endpoint} }, Pin: w.pin, Key: m.key, Node: "dev-main-1", Slipway: "0.3.0",
			Log: slog.New(slog.DiscardHandler), From: func() netip.Addr { return m.address },
		})
	}
	if gone, err := ask(time.Minute); gone || err != nil {
		t.Errorf("a node of the cluster: got %t, %v, want false", gone, err)
	}
	if _, err := w.registry.UpdateNode(t.Context(), "dev-main-1", func(n *admission.Node) error { n.Removing = true; return nil }); err != nil {
		t.Fatal(err)
	}
	if gone, err := ask(time.Minute); gone || err == nil || !strings.Contains(err.Error(), "is being removed") {
		t.Errorf("during the removal: got %t, %v, want an error", gone, err)
	}
	if err := w.registry.DeleteNode(t.Context(), "dev-main-1"); err != nil {
		t.Fatal(err)
	}
	if gone, err := ask(time.Minute); !gone || err != nil {
		t.Errorf("after the removal: got %t, %v, want true", gone, err)
	}
}

// A compromised node cannot exhaust a control plane with streams. Those of other nodes are not affected, and its own are
// accepted again when old ones have ended.
func TestStreamsOfOneNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rpc.Limits{})
	m, other := worker(w), controlPlane(w)
	m.join(t)
	other.join(t)
	greeted := func() *syncTalk {
		k := m.sync(t).greeted()
		if _, err := k.stream.Recv(); err != nil { // its roster
			t.Fatal(err)
		}
		return k
	}
	first := greeted()
	for range 7 {
		greeted()
	}
	if err := m.sync(t).greeted().end(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("the ninth stream: got %v, want ResourceExhausted", err)
	}
	entries := w.audit()
	if last := entries[len(entries)-1]; last.Reason != joinserver.TooMuch || last.Node != "dev-worker-0" {
		t.Errorf("got audit entry %s", last)
	}
	stays := other.sync(t)
	stays.sendHello(w.id, "dev-main-1")
	if _, err := stays.stream.Recv(); err != nil {
		t.Errorf("another node's stream: %v", err)
	}
	first.send(nil) // refused, which ends the stream
	_ = first.end()
	testkit.Eventually(t, "room for a new one", func() bool {
		k := m.sync(t).greeted()
		_, err := k.stream.Recv()
		return err == nil
	})
}

// Nor can it have an unlimited number of certificates signed.
func TestRenewalsOfOneNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rpc.Limits{})
	m := worker(w)
	m.join(t)
	k := m.sync(t).greeted()
	request := map[string][]byte{"kubelet": csr(t, x509.CertificateRequest{}, certtest.Key(t))}
	for range 100 {
		k.sendKeys(request)
	}
	if err := k.end(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("100 renewals at once: got %v, want ResourceExhausted", err)
	}
	if err := m.sync(t).greeted().sendKeys(request).end(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one more on a new stream: got %v, want ResourceExhausted", err)
	}
	signed := 0
	for _, e := range w.audit() {
		if e.Reason == joinserver.Certified {
			signed++
		}
	}
	if signed < 16 || signed > 30 {
		t.Errorf("got %d signed certificates, want 16 to 30", signed)
	}
}

// silent is a stream whose other side sends nothing.
type silent struct{ done <-chan struct{} }

func (s silent) Send(*joinv1.SyncReply) error { return nil }

func (s silent) Recv() (*joinv1.SyncRequest, error) {
	<-s.done
	return nil, context.Canceled
}

// A stream has no time limit, so the service ends one on which nothing is sent: of an unknown machine at once, of a node
// after ten seconds. The test runs the service without TLS, as the simulation does.
func TestSilenceEnds(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		known  bool
		reason joinserver.Reason
		after  time.Duration
	}{
		"unknown machine": {false, joinserver.Stranger, 0},
		"node":            {true, joinserver.Late, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := certtest.Key(t)
				node := specNode("dev-worker-0", "worker", 2)
				if tc.known {
					node.Key = pinOf(t, m.Public())
				}
				records := registry.New(registrytest.NewMemory(), time.Now).WithPolicy(policy)
				if err := records.Register(t.Context(), []admission.Node{node}); err != nil {
					t.Fatal(err)
				}
				w := &world{tb: t}
				s, err := joinserver.New(joinserver.Config{
					Cluster: "c", Self: "x", Records: records, Verifiers: map[string]attest.Verifier{"key": key.Verifier{}}, Tickets: w, Signer: w,
					Members: &fakeMembers{}, Rosters: newRosters(), ControlPlane: func(string) bool { return false }, Heartbeat: func(context.Context, string) (bool, error) { return false, nil }, Audit: w.heard, Log: slog.New(slog.DiscardHandler),
				})
				if err != nil {
					t.Fatal(err)
				}
				rule := s.Rules()[joinv1.Join_Sync_FullMethodName] // otherwise the connection of an unknown machine would count as a node's
				if err := rule(t.Context(), rpc.Peer{Key: pinOf(t, m.Public()), Public: &m.PublicKey}); (err == nil) != tc.known {
					t.Errorf("rule: got %v, want an error: %t", err, !tc.known)
				}
				w.entries = nil
				done := make(chan struct{})
				defer close(done)
				begun := time.Now()
				ch := channel{&m.PublicKey, pinOf(t, m.Public()), netip.MustParseAddrPort("127.0.0.66:1000")}
				if err := s.Sync(t.Context(), ch, silent{done}); err == nil {
					t.Error("got no error")
				}
				if e := w.audit(); len(e) != 1 || e[0].Reason != tc.reason || time.Since(begun) != tc.after {
					t.Errorf("after %s: got audit %v, want one entry with the reason %s after %s", time.Since(begun), e, tc.reason, tc.after)
				}
			})
		})
	}
}
