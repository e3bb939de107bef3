// SPDX-License-Identifier: Apache-2.0

// Package key is the attestation of machines that the cluster knows by their key: those that the operator registered, and those that
// were admitted before. The connection has proven the key and there is nothing else to prove. Whether a record has the key is
// decided by package admission.
//
// Read [Verifier].
//
//	evidence, err := key.Verifier{}.Verify(ctx, claim, nil) // evidence is empty: no more than the key
package key

import (
	"context"
	"errors"

	"github.com/slipway-project/slipway/internal/attest"
	"github.com/slipway-project/slipway/internal/core/admission"
)

// Prover proves no more than the key. The zero value is ready.
type Prover struct{}

var _ attest.Prover = Prover{}

// Kind is [attest.Prover].
func (Prover) Kind() string { return attest.Key }

// Evidence is [attest.Prover].
func (Prover) Evidence(context.Context, []byte, []byte) ([]byte, error) { return nil, nil }

// Answer is [attest.Prover].
func (Prover) Answer(context.Context, []byte) ([]byte, error) {
	return nil, errors.New("a machine that joins by its key answers no questions")
}

// Verifier accepts the key that the connection has proven. The zero value is ready.
type Verifier struct{}

var _ attest.Verifier = Verifier{}

// Verify is [attest.Verifier].
func (Verifier) Verify(_ context.Context, c attest.Claim, _ attest.Ask) (admission.Evidence, error) {
	if !c.Key.Valid() {
		return admission.Evidence{}, &admission.Refusal{Reason: admission.BadKey, Text: "the connection has proven no key"}
	}
	return admission.Evidence{}, nil
}
