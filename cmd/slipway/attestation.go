// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/slipway-project/slipway/internal/attest"
	"github.com/slipway-project/slipway/internal/attest/key"
	"github.com/slipway-project/slipway/internal/attest/token"
	"github.com/slipway-project/slipway/internal/node"
)

// attestation is one kind of attestation: both halves of its package.
type attestation struct {
	kind     string
	verifier func(token.Records) attest.Verifier
	// prover returns nil when the machine was given nothing for this kind.
	prover func(node.JoinTarget) attest.Prover
}

// attestations lists the kinds of attestation. A machine uses the first one that it was given something for.
var attestations = [...]attestation{
	{
		"token",
		func(r token.Records) attest.Verifier { return token.Verifier{Records: r} },
		func(t node.JoinTarget) attest.Prover {
			if t.Token == "" {
				return nil
			}
			return token.Prover{Text: t.Token}
		},
	},
	{
		attest.Key,
		func(token.Records) attest.Verifier { return key.Verifier{} },
		func(node.JoinTarget) attest.Prover { return key.Prover{} },
	},
}

func verifiers(r token.Records) map[string]attest.Verifier {
	out := map[string]attest.Verifier{}
	for _, a := range attestations {
		out[a.kind] = a.verifier(r)
	}
	return out
}

func prover(t node.JoinTarget) attest.Prover {
	for _, a := range attestations {
		if p := a.prover(t); p != nil {
			return p
		}
	}
	return key.Prover{}
}
