// SPDX-License-Identifier: Apache-2.0

// Package key is the attestation for machines that the cluster knows by their key: machines that the operator registered or that were
// admitted before. The connection proves the key, and nothing else is needed. Package admission checks whether a record has the key.
//
// Read [Verifier].
//
//	evidence, err := key.Verifier{}.Verify(ctx, claim, nil) // evidence is empty: the key is enough
package key

import (
	"context"
	"errors"

	"github.com/slipway-project/slipway/internal/attest"
	"github.com/slipway-project/slipway/internal/core/admission"
)

// Prover proves nothing in addition to the key. The zero value is ready to use.
type Prover struct{}

var _ attest.Prover = Prover{}

// Kind implements [attest.Prover].
func (Prover) Kind() string { return attest.Key }

// Evidence implements [attest.Prover].
func (Prover) Evidence(context.Context, []byte, []byte) ([]byte, error) { return nil, nil }

// Answer implements [attest.Prover].
func (Prover) Answer(context.Context, []byte) ([]byte, error) {
	return nil, errors.New("a machine that joins by its key cannot answer questions")
}

// Verifier accepts the key that the connection has proven. The zero value is ready to use.
type Verifier struct{}

var _ attest.Verifier = Verifier{}

// Verify implements [attest.Verifier].
func (Verifier) Verify(_ context.Context, c attest.Claim, _ attest.Ask) (admission.Evidence, error) {
	if !c.Key.Valid() {
		return admission.Evidence{}, &admission.Refusal{Reason: admission.BadKey, Text: "the connection has not proven a key"}
	}
	return admission.Evidence{}, nil
}
