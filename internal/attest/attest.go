// SPDX-License-Identifier: Apache-2.0

// Package attest is how a machine proves its right to join, in addition to its key. Each kind of attestation is a package with both
// halves: a prover on the machine and a verifier on the control plane. A verifier finds out what is true of the machine; it never
// decides what follows (package admission does), and writes nothing.
//
// Read [Prover], [Verifier] and [Claim].
//
//	evidence, err := verifiers["token"].Verify(ctx, attest.Claim{Key: pin, Evidence: []byte("slipway.…")}, nil)
//	evidence.TokenID // "k3v7q2ma"
package attest

import (
	"context"

	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/pin"
)

// Key names the attestation of machines that prove nothing but their key.
const Key = "key"

// Prover is the machine's half of one kind of attestation. It is safe for concurrent use.
type Prover interface {
	// Kind names the attestation: the verifier in the table of the join service.
	Kind() string
	// Evidence is sent with the machine's proof to the service that has sent the nonce; nil: there is none. exporter is bound to the
	// TLS connection.
	Evidence(ctx context.Context, nonce, exporter []byte) ([]byte, error)
	// Answer answers a question of the verifier.
	Answer(ctx context.Context, question []byte) ([]byte, error)
}

// Claim is what is known of a machine before it is verified. That it has the private key of Key is proven: it signed Nonce and
// Exporter with it.
type Claim struct {
	Key      pin.Pin // of the machine
	Cluster  string  // id of this cluster
	Node     string  // the name that the machine claims
	Nonce    []byte  // made by this service for this connection
	Exporter []byte  // of this TLS connection: evidence that is bound to it cannot come from another one
	Evidence []byte  // what the prover sent; unverified
}

// Ask sends a question to the machine's prover on its connection and waits for the answer.
type Ask func(ctx context.Context, question []byte) (answer []byte, err error)

// Verifier is the control plane's half of one kind of attestation. It is safe for concurrent use. An *admission.Refusal is its
// verdict; any other error means that it could not find out. ask may be nil for a verifier that has no questions.
type Verifier interface {
	Verify(ctx context.Context, c Claim, ask Ask) (admission.Evidence, error)
}
