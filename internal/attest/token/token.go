// SPDX-License-Identifier: Apache-2.0

// Package token is the attestation by one-time tokens: a machine proves that the operator gave it the text of a token. The verifier
// compares the text, and never stores, logs or repeats it. Package admission decides what the token permits; package registry records
// its use.
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

// Records is what the verifier reads. Package registry implements it.
type Records interface {
	Token(ctx context.Context, id string) (admission.Token, bool, error)
	ByKey(ctx context.Context, key pin.Pin) (admission.Node, bool, error)
	Waiting(ctx context.Context, key pin.Pin) (bool, error)
}

// Prover sends the text of a token.
type Prover struct {
	Text string
}

var _ attest.Prover = Prover{}

// Kind implements [attest.Prover].
func (Prover) Kind() string { return "token" }

// Evidence implements [attest.Prover].
func (p Prover) Evidence(context.Context, []byte, []byte) ([]byte, error) { return []byte(p.Text), nil }

// Answer implements [attest.Prover].
func (Prover) Answer(context.Context, []byte) ([]byte, error) {
	return nil, errors.New("a machine that joins by a token cannot answer questions")
}

// String hides the text, which is a secret.
func (Prover) String() string { return "[redacted]" }

// GoString returns the same as String.
func (p Prover) GoString() string { return p.String() }

// Verifier checks the text of tokens.
type Verifier struct {
	Records Records
}

var _ attest.Verifier = Verifier{}

// Verify implements [attest.Verifier]. A machine whose key has a record needs no token, and one that waits for approval has already sent
// its token. Both are accepted with a token that no longer exists.
func (v Verifier) Verify(ctx context.Context, c attest.Claim, _ attest.Ask) (admission.Evidence, error) {
	if _, known, err := v.Records.ByKey(ctx, c.Key); err != nil || known {
		return admission.Evidence{}, wrap(err)
	}
	evidence, err := v.check(ctx, string(c.Evidence))
	var no *admission.Refusal
	if errors.As(err, &no) {
		if waiting, err := v.Records.Waiting(ctx, c.Key); err != nil || waiting {
			return admission.Evidence{}, wrap(err)
		}
	}
	return evidence, err
}

// check returns the ID of the token with this text.
func (v Verifier) check(ctx context.Context, text string) (admission.Evidence, error) {
	id, hash, err := admission.ReadToken(text)
	if err != nil {
		return refuse(admission.TokenWrong, "the evidence is not a well-formed token")
	}
	t, ok, err := v.Records.Token(ctx, id)
	if err != nil {
		return admission.Evidence{}, wrap(err)
	}
	stored := t.Hash
	if !ok {
		stored = strings.Repeat("-", len(hash)) // takes the same time for an unknown ID
	}
	switch same := subtle.ConstantTimeCompare([]byte(hash), []byte(stored)) == 1; {
	case !ok:
		return refuse(admission.TokenUnknown, "there is no token "+id)
	case !same:
		return refuse(admission.TokenWrong, "the text does not match token "+id)
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
