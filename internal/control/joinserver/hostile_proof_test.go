// SPDX-License-Identifier: Apache-2.0

package joinserver_test

import (
	"crypto/ecdh"
	"crypto/rand"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/certtest"
	"github.com/slipway-project/slipway/internal/control/joinserver"
	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/core/admission"
	coremachine "github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/pin"
)

// proving attacks with a proof of a machine that is otherwise welcome.
func proving(reason joinserver.Reason, do func(t *testing.T, k *talk)) attack {
	return attack{machine: worker, reason: reason, do: func(t *testing.T, m *machine) error {
		k := m.talk(t).challenged()
		do(t, k)
		return k.end()
	}}
}

// TestHostileProofs kill each part of the transcript, the nonce's time, and the limits of a proof.
func TestHostileProofs(t *testing.T) {
	t.Parallel()
	runAttacks(t, 12, map[string]attack{
		"no signature":        proving(joinserver.BadSignature, func(_ *testing.T, k *talk) { k.sendProof(nil, "") }),
		"random signature":    proving(joinserver.BadSignature, func(_ *testing.T, k *talk) { k.sendProof([]byte(rand.Text()), "") }),
		"signature of 64 KiB": proving(joinserver.BadSignature, func(_ *testing.T, k *talk) { k.sendProof(make([]byte, 64<<10), "") }),
		"signature by another key": proving(joinserver.BadSignature, func(t *testing.T, k *talk) {
			k.sendProof(k.signature(certtest.Key(t)), "")
		}),
		"evidence of 64 KiB": proving(joinserver.TooLarge, func(_ *testing.T, k *talk) {
			k.sendProof(k.signature(k.m.key), strings.Repeat("a", 64<<10))
		}),
		"nonce of another connection": proving(joinserver.BadSignature, func(t *testing.T, k *talk) {
			k.nonce = k.m.talk(t).challenged().nonce
			k.sendProof(k.signature(k.m.key), "")
		}),
		"exporter of another connection": proving(joinserver.BadSignature, func(t *testing.T, k *talk) {
			k.exporter = k.m.talk(t).exporter
			k.sendProof(k.signature(k.m.key), "")
		}),
		"hello and proof replayed on a new connection": proving(joinserver.BadSignature, func(t *testing.T, k *talk) {
			first := k.m.talk(t)
			first.hello = k.hello
			first.challenged()
			k.sendProof(first.signature(k.m.key), "")
		}),
		"seal key exchanged after the signature": proving(joinserver.BadSignature, func(t *testing.T, k *talk) {
			mine, err := ecdh.X25519().GenerateKey(rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			k.hello.SealKey = mine.PublicKey().Bytes()
			k.sendProof(k.signature(k.m.key), "")
		}),
		"facts exchanged after the signature": proving(joinserver.BadSignature, func(_ *testing.T, k *talk) {
			k.hello.Facts = coremachine.Facts{Address: k.m.address, CgroupV1: true}.Encode()
			k.sendProof(k.signature(k.m.key), "")
		}),
		"proof after a minute": proving(joinserver.Late, func(_ *testing.T, k *talk) {
			k.m.w.skew.Store(int64(time.Minute + time.Second))
			k.sendProof(k.signature(k.m.key), "")
		}),
		// The thief stands between: it hands the service's nonce to an honest machine that takes it for the service, and the honest
		// machine's proof back.
		"relay through another machine": {machine: stranger, reason: joinserver.BadSignature, do: func(t *testing.T, m *machine) error {
			k := m.talk(t).challenged()
			honest := certtest.Key(t) // whether a record has it makes no difference: it is not the connection's
			return k.sendProof(k.signature(honest), "").end()
		}},
	})
}

// showing is an attack with a token's text.
func showing(reason admission.Reason, prepare func(w *world) *machine) attack {
	return attack{machine: prepare, reason: joinserver.Reason(reason), do: func(t *testing.T, m *machine) error {
		return m.talk(t).proven().end()
	}}
}

// withToken makes a stranger with a token, and does to the token what the case says.
func withToken(spec registry.TokenSpec, then func(m *machine)) func(w *world) *machine {
	return func(w *world) *machine {
		m := stranger(w).invited(spec)
		then(m)
		return m
	}
}

// TestHostileTokens: what is refused by the token's verifier or by its record. They kill the call of the verifier, the use of its
// evidence, and the request's key.
func TestHostileTokens(t *testing.T) {
	t.Parallel()
	pool := registry.TokenSpec{Pool: "worker"}
	text := func(s string) func(m *machine) { return func(m *machine) { m.token = s } }
	runAttacks(t, 16, map[string]attack{
		"unknown key":   showing(admission.KeyUnknown, stranger),
		"token expired": showing(admission.TokenExpired, withToken(pool, func(m *machine) { m.w.skew.Store(int64(16 * time.Minute)) })),
		"token revoked": showing(admission.TokenUnknown, withToken(pool, func(m *machine) {
			if err := m.w.registry.RevokeToken(m.w.tb.Context(), strings.Split(m.token, ".")[1]); err != nil {
				m.w.tb.Fatal(err)
			}
		})),
		"token used by its owner, then stolen": showing(admission.TokenUsed, withToken(pool, func(m *machine) {
			owner := m.w.machine("127.0.0.21")
			owner.token = m.token
			owner.join(m.w.tb)
		})),
		"token guessed": showing(admission.TokenUnknown, withToken(pool, text("slipway.aaaaaaaa."+strings.Repeat("a", 32)))),
		"token's secret guessed": showing(admission.TokenWrong, withToken(pool, func(m *machine) {
			m.token = m.token[:len(m.token)-32] + strings.Repeat("a", 32)
		})),
		"token's id only":                         showing(admission.TokenWrong, withToken(pool, func(m *machine) { m.token = strings.Split(m.token, ".")[1] })),
		"token with a newline":                    showing(admission.TokenWrong, withToken(pool, func(m *machine) { m.token += "\n" })),
		"token of binary":                         showing(admission.TokenWrong, withToken(pool, text("\x00\xff\x1b[31m"))),
		"token of 4 KiB":                          showing(admission.TokenWrong, withToken(pool, text(strings.Repeat("a", 4096)))),
		"token for another key":                   showing(admission.TokenOtherKey, withToken(registry.TokenSpec{Pool: "worker", Key: pin.Pin("sha256:" + strings.Repeat("0", 64))}, func(*machine) {})),
		"token without text":                      {machine: stranger, reason: joinserver.Reason(admission.TokenWrong), do: emptyToken},
		"worker's token, name of a control plane": showing(admission.NameOther, withToken(pool, func(m *machine) { m.node = "dev-main-1" })),
		"worker's token, other worker's name":     showing(admission.NameOther, withToken(pool, func(m *machine) { m.node = "dev-worker-0" })),
		"named token, other name":                 showing(admission.NameOther, withToken(registry.TokenSpec{Node: "dev-worker-0"}, func(m *machine) { m.node = "dev-main-1" })),
		"token, but the key verifier": {machine: withToken(pool, func(*machine) {}), reason: joinserver.Reason(admission.KeyUnknown), do: func(t *testing.T, m *machine) error {
			k := m.talk(t)
			k.hello.Verifier = "key"
			return k.proven().end()
		}},
	})
}

func emptyToken(t *testing.T, m *machine) error {
	k := m.talk(t)
	k.hello.Verifier = "token"
	return k.proven().end()
}

// TestHostileRecords: the machine is known, and its record or its facts say no.
func TestHostileRecords(t *testing.T) {
	t.Parallel()
	change := func(name string, change func(n *admission.Node)) func(w *world) *machine {
		return func(w *world) *machine {
			m := w.machine("127.0.0.20").expected(name)
			_, err := w.registry.UpdateNode(w.tb.Context(), name, func(n *admission.Node) error { change(n); return nil })
			if err != nil {
				w.tb.Fatal(err)
			}
			return m
		}
	}
	named := func(node string) func(w *world) *machine {
		return func(w *world) *machine { m := worker(w); m.node = node; return m }
	}
	version := func(reason admission.Reason, v, public string) attack {
		a := showing(reason, func(w *world) *machine { m := worker(w); m.version = v; return m })
		a.public = public
		return a
	}
	runAttacks(t, 11, map[string]attack{
		"other node's name": showing(admission.NameOther, named("dev-main-1")),
		"new name":          showing(admission.NameOther, named("dev-worker-7")),
		"node that is being removed": showing(admission.NodeRemoving, change("dev-worker-0", func(n *admission.Node) {
			n.Removing = true
		})),
		"node that was removed": showing(admission.KeyRemoved, func(w *world) *machine {
			m := worker(w)
			if err := w.registry.DeleteNode(w.tb.Context(), "dev-worker-0"); err != nil {
				w.tb.Fatal(err)
			}
			return m
		}),
		"node that was removed, with its old token": showing(admission.KeyRemoved, func(w *world) *machine {
			m := w.machine("127.0.0.21").invited(registry.TokenSpec{Pool: "worker"})
			node := m.join(w.tb).Ticket.Plan.Node
			if err := w.registry.DeleteNode(w.tb.Context(), node); err != nil {
				w.tb.Fatal(err)
			}
			return m
		}),
		"address of another node": showing(admission.AddressTaken, func(w *world) *machine {
			m := worker(w)
			m.address = w.endpoint.Addr()
			return m
		}),
		"key of a worker that is alive elsewhere": showing(admission.KeyInUse, func(w *world) *machine {
			w.alive.Store(true)
			return change("dev-worker-0", func(n *admission.Node) { n.Address, n.JoinedAt = netip.MustParseAddr("127.0.0.21"), time.Now().UTC() })(w)
		}),
		"control plane from another address": showing(admission.AddressMoved, change("dev-main-1", func(n *admission.Node) {
			n.Address = netip.MustParseAddr("127.0.0.11")
		})),
		"future Kubernetes": version(admission.VersionNewer, "1.37.0", "the machine's Kubernetes 1.37.0 is newer than the API server's 1.36.4: upgrade the control planes first"),
		"old Kubernetes":    version(admission.VersionOlder, "1.32.9", "the machine's Kubernetes 1.32.9 is more than 3 minor versions older than the API server's 1.36.4: install a newer version on the machine"),
		"odd Kubernetes":    version(admission.VersionBad, "latest", `"latest" is not a Kubernetes version`),
	})
}
