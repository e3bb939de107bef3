// SPDX-License-Identifier: Apache-2.0

package joinserver

import (
	"fmt"
	"net/netip"
	"strings"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/core/handshake"
)

// protocol is the only version of the join protocol that this service speaks.
const protocol = 1

// Most that strangers may send, per field. The names' limit is Kubernetes' own for node names that are DNS labels.
const (
	maxName     = 63
	maxVersion  = 64
	maxID       = 64
	maxEvidence = 4096
)

// checkHello compares a hello with what is known without asking anybody. It comes before every signature and every question.
func (e *session) checkHello(h *joinv1.Hello) error {
	if err := checkLengths(h); err != nil {
		return err
	}
	if h.GetProtocol() != protocol {
		return tell(BadProtocol, fmt.Sprintf("join protocol %d is not spoken here, only %d: use the same slipway on all machines", h.GetProtocol(), protocol))
	}
	if h.GetCluster() != e.Cluster {
		return deny(BadCluster, "it wants to join cluster %s, this is %s", h.GetCluster(), e.Cluster)
	}
	if e.Verifiers[h.GetVerifier()] == nil {
		return deny(BadVerifier, "there is no verifier %q", h.GetVerifier())
	}
	if e.peer.Key == e.Self {
		return deny(OwnNode, "this is the machine of the join service itself")
	}
	return nil
}

func checkLengths(h *joinv1.Hello) error {
	for _, f := range [...]struct {
		what, text string
		most       int
	}{
		{"cluster", h.GetCluster(), maxID},
		{"verifier", h.GetVerifier(), maxName},
		{"kubernetes", h.GetKubernetes(), maxVersion},
		{"slipway", h.GetSlipway(), maxVersion},
	} {
		if len(f.text) > f.most || !plain(f.text) {
			return deny(Malformed, "%s has %d bytes or a character that none of ours has: %.40q", f.what, len(f.text), f.text)
		}
	}
	if n := h.GetNode(); n != "" && !nodeName(n) {
		return deny(Malformed, "node name of %d bytes is none: %.40q", len(n), n)
	}
	if len(h.GetSealKey()) != handshake.SealKeySize {
		return deny(Malformed, "seal key of %d bytes, want %d", len(h.GetSealKey()), handshake.SealKeySize)
	}
	return nil
}

// checkAddress refuses a machine that reports another address than the one that its connection comes from: it is behind a
// translation, or its hello was replayed from elsewhere.
func (e *session) checkAddress(reported netip.Addr) error {
	if from := e.from(); reported != from {
		return deny(BadAddress, "it reports the address %s and connects from %s", reported, from)
	}
	return nil
}

// plain texts are visible ASCII.
func plain(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' })
}

// nodeName reports whether the text may be a node's name: a DNS label.
func nodeName(name string) bool {
	outside := func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' }
	return name != "" && len(name) <= maxName && !strings.ContainsFunc(name, outside) && name[0] != '-' && name[len(name)-1] != '-'
}
