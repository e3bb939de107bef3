// SPDX-License-Identifier: Apache-2.0

package joinserver_test

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/attest"
	"github.com/slipway-project/slipway/internal/attest/key"
	"github.com/slipway-project/slipway/internal/certtest"
	"github.com/slipway-project/slipway/internal/control/joinserver"
	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/control/registry/registrytest"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/rpc"
)

// silent is a stream whose other side says nothing.
type silent struct{ done <-chan struct{} }

func (s silent) Send(*joinv1.SyncReply) error { return nil }

func (s silent) Recv() (*joinv1.SyncRequest, error) {
	<-s.done
	return nil, context.Canceled
}

// A stream has no limit of time, so who says nothing must not keep one: a stranger not for a moment, a node for ten seconds. Without
// TLS, as a simulation runs the service.
func TestSilenceEnds(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		known  bool
		reason joinserver.Reason
		after  time.Duration
	}{
		"stranger": {false, joinserver.Stranger, 0},
		"node":     {true, joinserver.Late, 10 * time.Second},
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
					Members: &fakeMembers{}, Rosters: newRosters(), ControlPlane: func(string) bool { return false }, Alive: func(context.Context, string) (bool, error) { return false, nil }, Audit: w.heard, Log: slog.New(slog.DiscardHandler),
				})
				if err != nil {
					t.Fatal(err)
				}
				rule := s.Rules()[joinv1.Join_Sync_FullMethodName] // or a stranger's connection would count as a node's
				if err := rule(t.Context(), rpc.Peer{Key: pinOf(t, m.Public()), Public: &m.PublicKey}); (err == nil) != tc.known {
					t.Errorf("the rule says %v", err)
				}
				w.entries = nil
				done := make(chan struct{})
				defer close(done)
				begun := time.Now()
				ch := channel{&m.PublicKey, pinOf(t, m.Public()), netip.MustParseAddrPort("127.0.0.66:1000")}
				if err := s.Sync(t.Context(), ch, silent{done}); err == nil {
					t.Error("it ended well")
				}
				if e := w.audit(); len(e) != 1 || e[0].Reason != tc.reason || time.Since(begun) != tc.after {
					t.Errorf("after %s: %v", time.Since(begun), e)
				}
			})
		})
	}
}
