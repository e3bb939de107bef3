// SPDX-License-Identifier: Apache-2.0

package joinserver_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"strings"
	"testing"
	"time"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/control/joinserver"
	"github.com/slipway-project/slipway/internal/rpc"
)

// saying changes the hello of a machine that is otherwise welcome.
func saying(reason joinserver.Reason, change func(h *joinv1.Hello)) attack {
	return attack{machine: worker, reason: reason, do: func(t *testing.T, m *machine) error {
		k := m.talk(t)
		change(k.hello)
		return k.sendHello().end()
	}}
}

// TestHostileHellos are refused before anything is computed. They kill the lines of checkHello, checkLengths and checkAddress.
func TestHostileHellos(t *testing.T) {
	t.Parallel()
	huge := strings.Repeat("a", 64<<10)
	spoken := func(n string) string {
		return "join protocol " + n + " is not supported, only 1: use the same version of slipway on all machines"
	}
	none := saying(joinserver.BadProtocol, func(h *joinv1.Hello) { h.Protocol = 0 })
	none.public = spoken("0")
	future := saying(joinserver.BadProtocol, func(h *joinv1.Hello) { h.Protocol = 2 })
	future.public = spoken("2")
	runAttacks(t, 30, map[string]attack{
		"no protocol":                none,
		"future protocol":            future,
		"wrong cluster":              saying(joinserver.BadCluster, func(h *joinv1.Hello) { h.Cluster = strings.Repeat("0", 32) }),
		"empty cluster":              saying(joinserver.BadCluster, func(h *joinv1.Hello) { h.Cluster = "" }),
		"cluster of 64 KiB":          saying(joinserver.Malformed, func(h *joinv1.Hello) { h.Cluster = huge }),
		"unknown verifier":           saying(joinserver.BadVerifier, func(h *joinv1.Hello) { h.Verifier = "tpm" }),
		"no verifier":                saying(joinserver.BadVerifier, func(h *joinv1.Hello) { h.Verifier = "" }),
		"verifier of 64 KiB":         saying(joinserver.Malformed, func(h *joinv1.Hello) { h.Verifier = huge }),
		"node name of 64 KiB":        saying(joinserver.Malformed, func(h *joinv1.Hello) { h.Node = huge }),
		"node name of 64 bytes":      saying(joinserver.Malformed, func(h *joinv1.Hello) { h.Node = huge[:64] }),
		"newline in node name":       saying(joinserver.Malformed, func(h *joinv1.Hello) { h.Node = "a\nreason=granted" }),
		"ANSI in node name":          saying(joinserver.Malformed, func(h *joinv1.Hello) { h.Node = "a\x1b[2J" }),
		"right-to-left node name":    saying(joinserver.Malformed, func(h *joinv1.Hello) { h.Node = "a\u202eb" }),
		"path as node name":          saying(joinserver.Malformed, func(h *joinv1.Hello) { h.Node = "../x" }),
		"newline in version":         saying(joinserver.Malformed, func(h *joinv1.Hello) { h.Kubernetes = "1.36.4\nid=1" }),
		"version of 64 KiB":          saying(joinserver.Malformed, func(h *joinv1.Hello) { h.Kubernetes = huge }),
		"ANSI in slipway version":    saying(joinserver.Malformed, func(h *joinv1.Hello) { h.Slipway = "\x1b]0;x\a" }),
		"quote in slipway version":   saying(joinserver.Malformed, func(h *joinv1.Hello) { h.Slipway = `0.3" node="` + "é" }),
		"no seal key":                saying(joinserver.Malformed, func(h *joinv1.Hello) { h.SealKey = nil }),
		"short seal key":             saying(joinserver.Malformed, func(h *joinv1.Hello) { h.SealKey = h.GetSealKey()[:31] }),
		"seal key of 64 KiB":         saying(joinserver.Malformed, func(h *joinv1.Hello) { h.SealKey = []byte(huge) }),
		"empty everything":           saying(joinserver.Malformed, func(h *joinv1.Hello) { h.Reset() }),
		"no facts":                   saying(joinserver.Malformed, func(h *joinv1.Hello) { h.Facts = nil }),
		"no address":                 saying(joinserver.BadAddress, func(h *joinv1.Hello) { h.Facts = []byte("{}") }),
		"address of another machine": saying(joinserver.BadAddress, func(h *joinv1.Hello) { h.Facts = []byte(`{"address":"127.0.0.21"}`) }),
		"name as address":            saying(joinserver.Malformed, func(h *joinv1.Hello) { h.Facts = []byte(`{"address":"localhost"}`) }),
		"address with a zone":        saying(joinserver.BadAddress, func(h *joinv1.Hello) { h.Facts = []byte(`{"address":"fe80::1%eth0"}`) }),
		"address of 64 KiB":          saying(joinserver.Malformed, func(h *joinv1.Hello) { h.Facts = []byte(`{"address":"` + huge + `"}`) }),
		"own node": {machine: ownNode, reason: joinserver.OwnNode, do: func(t *testing.T, m *machine) error {
			return m.talk(t).sendHello().end()
		}},
		"machine key Ed25519": {machine: stranger, reason: joinserver.BadKeyKind, do: func(t *testing.T, m *machine) error {
			_, key, err := ed25519.GenerateKey(rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			certificate, err := rpc.SelfSigned(key, "x", time.Now())
			if err != nil {
				t.Fatal(err)
			}
			return m.talkOn(t, m.connWith(t, certificate)).sendHello().end()
		}},
	})
}

// ownNode has the key of the machine that serves.
func ownNode(w *world) *machine {
	m := w.machine("127.0.0.1")
	m.key = w.own
	return m
}

// TestHostileOrder kill the checks of what message is due.
func TestHostileOrder(t *testing.T) {
	t.Parallel()
	runAttacks(t, 9, map[string]attack{
		"message without anything": {machine: worker, reason: joinserver.BadOrder, do: func(t *testing.T, m *machine) error {
			return m.talk(t).send(&joinv1.JoinRequest{}).end()
		}},
		"proof first": {machine: worker, reason: joinserver.BadOrder, do: func(t *testing.T, m *machine) error {
			return m.talk(t).sendProof([]byte("x"), "").end()
		}},
		"request before the grant": {machine: worker, reason: joinserver.BadOrder, do: func(t *testing.T, m *machine) error {
			return m.talk(t).sendKeys(honest(t)).end()
		}},
		"hello twice": {machine: worker, reason: joinserver.BadOrder, do: func(t *testing.T, m *machine) error {
			return m.talk(t).challenged().sendHello().end()
		}},
		"request instead of the proof": {machine: worker, reason: joinserver.BadOrder, do: func(t *testing.T, m *machine) error {
			return m.talk(t).challenged().sendKeys(honest(t)).end()
		}},
		"proof twice": {machine: worker, joined: true, reason: joinserver.BadOrder, do: func(t *testing.T, m *machine) error {
			k := m.talk(t).granted()
			return k.sendProof(k.signature(m.key), "").end()
		}},
		"hello after the grant": {machine: worker, joined: true, reason: joinserver.BadOrder, do: func(t *testing.T, m *machine) error {
			return m.talk(t).granted().sendHello().end()
		}},
		"message of 2 MiB": {machine: worker, byGRPC: true, reason: joinserver.TooLarge, do: func(t *testing.T, m *machine) error {
			return m.talk(t).sendKeys(map[string][]byte{"x": make([]byte, 2<<20)}).end()
		}},
		"endless hellos": {machine: worker, reason: joinserver.BadOrder, do: func(t *testing.T, m *machine) error {
			k := m.talk(t)
			for k.stream.Send(&joinv1.JoinRequest{Message: &joinv1.JoinRequest_Hello{Hello: k.hello}}) == nil {
			}
			return k.end()
		}},
	})
}
