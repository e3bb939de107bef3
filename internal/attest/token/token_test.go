// SPDX-License-Identifier: Apache-2.0

package token_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/slipway-project/slipway/internal/attest"
	"github.com/slipway-project/slipway/internal/attest/token"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/pin"
)

func testPin(n int) pin.Pin { return pin.Pin(fmt.Sprintf("sha256:%064x", n)) }

// records has one token, a node with key 1 and a machine with key 2 that waits.
type records struct {
	token admission.Token
	err   error
}

func (r records) Token(_ context.Context, id string) (admission.Token, bool, error) {
	if r.err != nil {
		return admission.Token{}, false, r.err
	}
	if id != r.token.ID {
		return admission.Token{}, false, nil
	}
	return r.token, true, nil
}

func (r records) ByKey(_ context.Context, key pin.Pin) (admission.Node, bool, error) {
	return admission.Node{}, key == testPin(1), r.err
}

func (r records) Waiting(_ context.Context, key pin.Pin) (bool, error) {
	return key == testPin(2), r.err
}

func made(t *testing.T, seed byte) (admission.Token, string) {
	t.Helper()
	id, text := admission.TokenText([admission.TokenRandom]byte{seed, 1, 2, 3, 4, 5, 6})
	_, hash, err := admission.ReadToken(text)
	if err != nil {
		t.Fatal(err)
	}
	return admission.Token{ID: id, Hash: hash}, text
}

func TestVerify(t *testing.T) {
	t.Parallel()
	good, text := made(t, 1)
	_, other := made(t, 2)
	guessed := text[:len(text)-1] + map[bool]string{true: "b", false: "a"}[strings.HasSuffix(text, "a")]
	away := errors.New("no answer")
	tests := map[string]struct {
		key      int
		evidence string
		stored   func(*admission.Token)
		err      error

		want   string // the token's id
		reason admission.Reason
	}{
		"right":                      {key: 3, evidence: text, want: good.ID},
		"guessed":                    {key: 3, evidence: guessed, reason: admission.TokenWrong},
		"the id alone":               {key: 3, evidence: good.ID, reason: admission.TokenWrong},
		"the hash":                   {key: 3, evidence: good.Hash, reason: admission.TokenWrong},
		"unknown":                    {key: 3, evidence: other, reason: admission.TokenUnknown},
		"nothing":                    {key: 3, reason: admission.TokenWrong},
		"much":                       {key: 3, evidence: strings.Repeat("x", 1<<20), reason: admission.TokenWrong},
		"a line too many":            {key: 3, evidence: text + "\n", reason: admission.TokenWrong},
		"a record without a hash":    {key: 3, evidence: text, stored: func(t *admission.Token) { t.Hash = "" }, reason: admission.TokenWrong},
		"no answer":                  {key: 3, evidence: text, err: away},
		"known machine":              {key: 1, evidence: other},
		"waiting machine":            {key: 2, evidence: other},
		"waiting machine, new right": {key: 2, evidence: text, want: good.ID},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := records{good, tt.err}
			if tt.stored != nil {
				tt.stored(&r.token)
			}
			got, err := token.Verifier{Records: r}.Verify(t.Context(), attest.Claim{Key: testPin(tt.key), Evidence: []byte(tt.evidence)}, nil)
			if got.TokenID != tt.want {
				t.Errorf("proven %q, want %q", got.TokenID, tt.want)
			}
			var no *admission.Refusal
			if errors.As(err, &no) != (tt.reason != "") || no != nil && no.Reason != tt.reason || !errors.Is(err, tt.err) && tt.err != nil || (err != nil) != (tt.reason != "" || tt.err != nil) {
				t.Errorf("error %v, want %q %v", err, tt.reason, tt.err)
			}
			if err != nil && len(tt.evidence) > 30 && strings.Contains(err.Error(), tt.evidence[20:30]) {
				t.Errorf("the error repeats the secret: %v", err)
			}
		})
	}
}
