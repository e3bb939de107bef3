// SPDX-License-Identifier: Apache-2.0

package joinserver_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"net/netip"
	"strings"
	"testing"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/certtest"
	"github.com/slipway-project/slipway/internal/control/joinserver"
	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/core/admission"
)

// staying attacks on the stream of a legitimate node.
func staying(reason joinserver.Reason, do func(t *testing.T, k *syncTalk)) attack {
	return attack{machine: worker, joined: true, reason: reason, do: func(t *testing.T, m *machine) error {
		k := m.sync(t)
		do(t, k)
		return k.end()
	}}
}

// fromElsewhere uses the node's key from another address while the node is alive.
func fromElsewhere(node string) func(t *testing.T, m *machine) error {
	return func(t *testing.T, m *machine) error {
		m.w.alive.Store(true)
		m.address = netip.MustParseAddr("127.0.0.77")
		k := m.sync(t)
		k.sendHello(m.w.id, node)
		return k.end()
	}
}

// greeted sends the hello.
func (k *syncTalk) greeted() *syncTalk { return k.sendHello(k.m.w.id, "dev-worker-0") }

// TestHostileSyncs checks the rule of Sync, its hello, and that renewals and member requests get the same checks.
func TestHostileSyncs(t *testing.T) {
	t.Parallel()
	outside := func(reason joinserver.Reason, m func(w *world) *machine) attack {
		return attack{machine: m, reason: reason, do: func(t *testing.T, m *machine) error { return m.sync(t).greeted().end() }}
	}
	large := staying(joinserver.TooLarge, func(_ *testing.T, k *syncTalk) { k.sendHello(k.m.w.id, strings.Repeat("a", 2<<20)) })
	large.byGRPC = true
	runAttacks(t, 20, map[string]attack{
		"sync, message of 2 MiB":         large,
		"sync by an unknown machine":     outside(joinserver.Stranger, stranger),
		"sync by a machine with a token": outside(joinserver.Stranger, withToken(registry.TokenSpec{Pool: "worker"}, func(*machine) {})),
		"sync while being removed": outside(joinserver.Removed, func(w *world) *machine {
			m := worker(w)
			_, err := w.registry.UpdateNode(w.tb.Context(), "dev-worker-0", func(n *admission.Node) error { n.Removing = true; return nil })
			if err != nil {
				w.tb.Fatal(err)
			}
			return m
		}),
		"sync after the removal": outside(joinserver.Stranger, func(w *world) *machine {
			m := worker(w)
			if err := w.registry.DeleteNode(w.tb.Context(), "dev-worker-0"); err != nil {
				w.tb.Fatal(err)
			}
			return m
		}),
		"sync with the key of a worker that is alive elsewhere": {joined: true, machine: worker, reason: joinserver.Reason(admission.KeyInUse), do: fromElsewhere("dev-worker-0")},
		"sync with the key of a control plane from elsewhere":   {joined: true, machine: controlPlane, reason: joinserver.Reason(admission.AddressMoved), do: fromElsewhere("dev-main-1")},
		"sync as another node":                                  staying(joinserver.OtherNode, func(_ *testing.T, k *syncTalk) { k.sendHello(k.m.w.id, "dev-main-1") }),
		"sync without a name":                                   staying(joinserver.OtherNode, func(_ *testing.T, k *syncTalk) { k.sendHello(k.m.w.id, "") }),
		"sync as ANSI":                                          staying(joinserver.OtherNode, func(_ *testing.T, k *syncTalk) { k.sendHello(k.m.w.id, "\x1b[2J\nx") }),
		"sync in another cluster":                               staying(joinserver.BadCluster, func(_ *testing.T, k *syncTalk) { k.sendHello("x", "dev-worker-0") }),
		"sync, name of 64 KiB":                                  staying(joinserver.Malformed, func(_ *testing.T, k *syncTalk) { k.sendHello(k.m.w.id, strings.Repeat("a", 64<<10)) }),
		"sync, keys first":                                      staying(joinserver.BadOrder, func(t *testing.T, k *syncTalk) { k.sendKeys(honest(t)) }),
		"sync, member first":                                    staying(joinserver.BadOrder, func(_ *testing.T, k *syncTalk) { k.sendMember(true) }),
		"sync, hello twice":                                     staying(joinserver.BadOrder, func(_ *testing.T, k *syncTalk) { k.greeted().greeted() }),
		"sync, message of nothing":                              staying(joinserver.BadOrder, func(_ *testing.T, k *syncTalk) { k.greeted().send(&joinv1.SyncRequest{}) }),
		"member by a worker":                                    staying(joinserver.NotControlPlane, func(_ *testing.T, k *syncTalk) { k.greeted().sendMember(false) }),
		"renewal with a forged subject": staying(joinserver.BadSubject, func(t *testing.T, k *syncTalk) {
			k.greeted().sendKeys(map[string][]byte{"kubelet": csr(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:dev-main-0"}}, certtest.Key(t))})
		}),
		"renewal of another certificate": staying(joinserver.BadWant, func(t *testing.T, k *syncTalk) {
			k.greeted().sendKeys(map[string][]byte{"apiserver-kubelet-client": csr(t, x509.CertificateRequest{}, certtest.Key(t))})
		}),
		"renewal with its machine key": staying(joinserver.KeyTaken, func(t *testing.T, k *syncTalk) {
			k.greeted().sendKeys(map[string][]byte{"kubelet": csr(t, x509.CertificateRequest{}, k.m.key)})
		}),
	})
}
