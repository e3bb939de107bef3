// SPDX-License-Identifier: Apache-2.0

// Package handshake defines the bytes that a joining machine signs and the bytes to which secrets for it are bound when they are
// sealed. Both sides of a join, node/joinclient and control/joinserver, compute them here. The package holds no keys, creates
// no random bytes and does no I/O.
//
// Read [Transcript] first, then [SealInfo].
//
//	digest := handshake.Transcript{Exporter: exporter, Nonce: nonce, Hello: hello}.Digest()
package handshake

import (
	"crypto/sha256"
	"strconv"

	"github.com/slipway-project/slipway/internal/core/pin"
)

// Lengths in bytes of the values that are new for each join.
const (
	ExporterSize = 32
	NonceSize    = 32
	SealKeySize  = 32 // a public key of DHKEM(X25519)
)

// Transcript is what a machine's proof covers: the TLS session, the nonce and the hello. The proof is therefore worthless on any
// other connection and for any other cluster.
type Transcript struct {
	Exporter []byte // ExporterSize bytes of keying material of the TLS session, label "EXPORTER-slipway-join"
	Nonce    []byte // NonceSize bytes from the control plane
	Hello    []byte // deterministically marshalled
}

// Digest returns what the machine signs. The caller must have checked the lengths of Exporter and Nonce: only then do different
// transcripts have different digests.
func (t Transcript) Digest() [sha256.Size]byte {
	hello := sha256.Sum256(t.Hello)
	sum := sha256.New()
	sum.Write([]byte("slipway join v1\x00"))
	sum.Write(t.Exporter)
	sum.Write(t.Nonce)
	sum.Write(hello[:])
	var digest [sha256.Size]byte
	sum.Sum(digest[:0])
	return digest
}

// SealInfo returns the info parameter of HPKE for a node's secrets. It binds them to the cluster, to the node and to the pin of
// the machine's key. Each part is preceded by its length, so that different parts give different bytes.
func SealInfo(cluster, node string, key pin.Pin) []byte {
	info := []byte("slipway join secrets v1\x00")
	for _, part := range []string{cluster, node, string(key)} {
		info = append(strconv.AppendInt(info, int64(len(part)), 10), ':')
		info = append(info, part...)
	}
	return info
}
