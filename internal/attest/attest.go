// SPDX-License-Identifier: Apache-2.0

// Package attest is how a machine proves its right to join, beyond its key: one interface, and a folder for each way. A verifier
// finds out what is true of the machine that talks; it never decides what follows (admission does), and writes nothing.
//
// Read [Verifier] and [Claim].
//
//	evidence, err := verifiers["token"].Verify(ctx, attest.Claim{Key: pin, Evidence: []byte("slipway.…")}, nil)
//	evidence.TokenID // "k3v7q2ma"
package attest

import (
	"context"

	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/pin"
)

// Claim is what is known of a machine before it is verified. That it has the private key of Key is proven: it signed Nonce and
// Exporter with it.
type Claim struct {
	Key      pin.Pin // pin of its key
	Cluster  string  // id of this cluster
	Node     string  // the name that it says it has
	Nonce    []byte  // of this connection, ours
	Exporter []byte  // of this TLS connection: evidence that is bound to it cannot come from another one
	Evidence []byte  // its own words
}

// Ask puts a question to the machine and waits for the answer, on the connection that it is on. Both mean something to the
// verifier and its other half on the machine only.
type Ask func(ctx context.Context, question []byte) ([]byte, error)

// Verifier is one way to prove something. It is safe for concurrent use. A *admission.Refusal is its verdict; any other error
// means that it could not find out. ask may be nil where a verifier has no questions.
type Verifier interface {
	Verify(ctx context.Context, c Claim, ask func(ctx context.Context, question []byte) ([]byte, error)) (admission.Evidence, error)
}
