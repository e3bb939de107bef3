// SPDX-License-Identifier: Apache-2.0

// Package token is the verifier of one-time tokens: whoever knows a token's text has been given it by the operator. It compares
// and never keeps, logs or repeats the text; what the token is good for is admission's question, and its use is written by
// the registry.
//
// Read [Verifier].
//
//	evidence, err := token.Verifier{Records: registry}.Verify(ctx, claim, nil)
//	evidence.TokenID // "k3v7q2ma", to admission.Request.Evidence
package token

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"strings"

	"github.com/slipway-project/slipway/internal/attest"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/pin"
)

// Records is what the verifier reads; the registry has it.
type Records interface {
	Token(ctx context.Context, id string) (admission.Token, bool, error)
	ByKey(ctx context.Context, key pin.Pin) (admission.Node, bool, error)
	Waiting(ctx context.Context, key pin.Pin) (bool, error)
}

// Verifier checks the text of tokens.
type Verifier struct {
	Records Records
}

var _ attest.Verifier = Verifier{}

// Verify is [attest.Verifier]. A machine whose key has a record needs no token, and one that waits for approval has shown its
// token before: both may still come with it long after it is gone.
func (v Verifier) Verify(ctx context.Context, c attest.Claim, _ func(context.Context, []byte) ([]byte, error)) (admission.Evidence, error) {
	if _, known, err := v.Records.ByKey(ctx, c.Key); err != nil || known {
		return admission.Evidence{}, wrap(err)
	}
	evidence, err := v.proven(ctx, string(c.Evidence))
	var no *admission.Refusal
	if errors.As(err, &no) {
		if waiting, err := v.Records.Waiting(ctx, c.Key); err != nil || waiting {
			return admission.Evidence{}, wrap(err)
		}
	}
	return evidence, err
}

func (v Verifier) proven(ctx context.Context, text string) (admission.Evidence, error) {
	id, hash, err := admission.ReadToken(text)
	if err != nil {
		return refuse(admission.TokenWrong, "what the machine shows has not the form of a token")
	}
	t, ok, err := v.Records.Token(ctx, id)
	if err != nil {
		return admission.Evidence{}, wrap(err)
	}
	stored := t.Hash
	if !ok {
		stored = strings.Repeat("-", len(hash)) // the same work for an id that there is not
	}
	switch same := subtle.ConstantTimeCompare([]byte(hash), []byte(stored)) == 1; {
	case !ok:
		return refuse(admission.TokenUnknown, "there is no token "+id)
	case !same:
		return refuse(admission.TokenWrong, "the text is not that of token "+id)
	}
	return admission.Evidence{TokenID: id}, nil
}

func refuse(why admission.Reason, text string) (admission.Evidence, error) {
	return admission.Evidence{}, &admission.Refusal{Reason: why, Text: text}
}

func wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("verify token: %w", err)
}
