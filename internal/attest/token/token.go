// SPDX-License-Identifier: Apache-2.0

// Package token is the attestation by one-time tokens: a machine that knows a token's text was given it by the operator. The verifier
// compares the text and never stores, logs or repeats it. What the token permits is decided by package admission; its use is
// written by the registry.
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

// Prover shows the text of a token.
type Prover struct {
	Text string
}

var _ attest.Prover = Prover{}

// Kind is [attest.Prover].
func (Prover) Kind() string { return "token" }

// Evidence is [attest.Prover].
func (p Prover) Evidence(context.Context, []byte, []byte) ([]byte, error) { return []byte(p.Text), nil }

// Answer is [attest.Prover].
func (Prover) Answer(context.Context, []byte) ([]byte, error) {
	return nil, errors.New("a machine that joins by a token answers no questions")
}

// String hides the text, which is a secret.
func (Prover) String() string { return "[redacted]" }

// GoString is String.
func (p Prover) GoString() string { return p.String() }

// Verifier checks the text of tokens.
type Verifier struct {
	Records Records
}

var _ attest.Verifier = Verifier{}

// Verify is [attest.Verifier]. A machine whose key has a record needs no token, and one that waits for approval has shown its
// token before: both may still come with it long after it is gone.
func (v Verifier) Verify(ctx context.Context, c attest.Claim, _ attest.Ask) (admission.Evidence, error) {
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
