// SPDX-License-Identifier: Apache-2.0

// Package pin names public keys. A machine's pin is its identity, the pin of a cluster's join CA is the cluster's.
//
// Read [Pin].
package pin

import (
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"strings"
)

// Pin is the SHA-256 of a public key (SubjectPublicKeyInfo, DER): "sha256:" and 64 lower-case hex digits. The empty Pin stands for
// no key. Use [Parse] for text from outside.
type Pin string

const (
	prefix   = "sha256:"
	idDigits = 32
)

// Of returns the pin of a public key in its DER form.
func Of(spki []byte) Pin {
	sum := sha256.Sum256(spki)
	return Pin(prefix + hex.EncodeToString(sum[:]))
}

// OfCertificate returns the pin of a certificate's key.
func OfCertificate(c *x509.Certificate) Pin { return Of(c.RawSubjectPublicKeyInfo) }

// OfKey returns the pin of a public key.
func OfKey(key crypto.PublicKey) (Pin, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return "", fmt.Errorf("encode public key: %w", err)
	}
	return Of(der), nil
}

// Parse reads a pin; the empty text is not one.
func Parse(text string) (Pin, error) {
	if p := Pin(text); p.Valid() {
		return p, nil
	}
	return "", fmt.Errorf("%.80q is not a pin: want %q and 64 hex digits", text, prefix)
}

// Valid reports whether the text has the form of a pin.
func (p Pin) Valid() bool {
	digits, ok := strings.CutPrefix(string(p), prefix)
	return ok && len(digits) == 2*sha256.Size && strings.Trim(digits, "0123456789abcdef") == ""
}

// ClusterID returns the id of the cluster whose join CA has this pin, empty for an invalid pin. A cluster is its join CA: two
// clusters never have one id, and a client that knows the pin knows the cluster.
func (p Pin) ClusterID() string {
	if !p.Valid() {
		return ""
	}
	return string(p)[len(prefix) : len(prefix)+idDigits]
}
