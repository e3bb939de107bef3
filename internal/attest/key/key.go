// SPDX-License-Identifier: Apache-2.0

// Package key is the verifier of machines that the cluster knows by their key: those that the operator registered, and those that
// were in before. The connection has proven the key; there is nothing else to prove, so it never asks and never reads records.
// Whether a record has the key is admission's question.
//
// Read [Verifier].
//
//	evidence, err := key.Verifier{}.Verify(ctx, claim, nil) // evidence is empty: no more than the key
package key

import (
	"context"

	"github.com/slipway-project/slipway/internal/attest"
	"github.com/slipway-project/slipway/internal/core/admission"
)

// Verifier takes the key that the connection has proven. The zero value is ready.
type Verifier struct{}

var _ attest.Verifier = Verifier{}

// Verify is [attest.Verifier].
func (Verifier) Verify(_ context.Context, c attest.Claim, _ func(context.Context, []byte) ([]byte, error)) (admission.Evidence, error) {
	if !c.Key.Valid() {
		return admission.Evidence{}, &admission.Refusal{Reason: admission.BadKey, Text: "the connection has proven no key"}
	}
	return admission.Evidence{}, nil
}
