// SPDX-License-Identifier: Apache-2.0

// Package handshake says which bytes a joining machine signs and to which bytes a control plane's secrets are sealed, so that
// both sides of a join make the same ones. It computes; it holds no key, makes no randomness and speaks to nobody.
//
// Read [Transcript] first, then [SealInfo].
//
//	digest := Transcript{Exporter: 32 bytes, Nonce: 32 bytes, Hello: the marshalled hello}.Digest()
package handshake

import (
	"crypto/sha256"
	"strconv"

	"github.com/slipway-project/slipway/internal/core/pin"
)

// Lengths of what is fresh in each join.
const (
	ExporterSize = 32
	NonceSize    = 32
	SealKeySize  = 32 // a public key of DHKEM(X25519)
)

// Transcript is what a machine's proof covers: this TLS session, this nonce, this hello, and nothing that another connection
// or another cluster could use.
type Transcript struct {
	Exporter []byte // ExporterSize bytes, label "EXPORTER-slipway-join"
	Nonce    []byte // NonceSize bytes
	Hello    []byte // deterministically marshalled
}

// Digest is what is signed. Both sides check the two lengths before they use it: then no two transcripts share a digest.
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

// SealInfo binds sealed secrets to the cluster they are of, to the node they are for and to its machine's key (a pin). Lengths
// stand before the parts, so that no two triples give the same bytes.
func SealInfo(cluster, node string, key pin.Pin) []byte {
	info := []byte("slipway join secrets v1\x00")
	for _, part := range []string{cluster, node, string(key)} {
		info = append(strconv.AppendInt(info, int64(len(part)), 10), ':')
		info = append(info, part...)
	}
	return info
}
