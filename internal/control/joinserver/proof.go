// SPDX-License-Identifier: Apache-2.0

package joinserver

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/attest"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/handshake"
)

const (
	nonceLife    = time.Minute // a machine answers at once; a relay has no more time than this
	maxQuestions = 4           // that a verifier may ask
)

// prove challenges the machine: it must sign this connection, this nonce and its own hello, and its verifier must take the
// evidence. The nonce lives in this call only.
func (j *joining) prove(ctx context.Context) (admission.Evidence, error) {
	exporter, err := j.ch.Exporter()
	if err != nil || len(exporter) != handshake.ExporterSize {
		return admission.Evidence{}, fmt.Errorf("export %d bytes of the TLS session: %w", len(exporter), err)
	}
	hello, err := proto.MarshalOptions{Deterministic: true}.Marshal(j.hello)
	if err != nil {
		return admission.Evidence{}, deny(Malformed, "its hello cannot be written again: %v", err)
	}
	nonce := make([]byte, handshake.NonceSize)
	if _, err := rand.Read(nonce); err != nil {
		return admission.Evidence{}, fmt.Errorf("make nonce: %w", err)
	}
	proof, err := j.challenge(nonce)
	if err != nil {
		return admission.Evidence{}, err
	}
	digest := handshake.Transcript{Exporter: exporter, Nonce: nonce, Hello: hello}.Digest()
	err = j.work(ctx, func() error {
		if !ecdsa.VerifyASN1(j.key, digest[:], proof.GetSignature()) {
			return deny(BadSignature, "its proof is not signed by its key over this connection, nonce and hello")
		}
		return nil
	})
	if err != nil {
		return admission.Evidence{}, err
	}
	return j.verify(ctx, attest.Claim{
		Key: j.peer.Key, Cluster: j.Cluster, Node: j.hello.GetNode(), Nonce: nonce, Exporter: exporter, Evidence: proof.GetEvidence(),
	})
}

// challenge sends the nonce and takes the proof, if it comes in time.
func (j *joining) challenge(nonce []byte) (*joinv1.Proof, error) {
	sent := j.Now()
	proof, err := j.ask(nonce)
	switch {
	case err != nil:
		return nil, err
	case j.Now().Sub(sent) > nonceLife:
		return nil, deny(Late, "its proof came after %s", j.Now().Sub(sent).Round(time.Second))
	}
	return proof, nil
}

func (j *joining) ask(question []byte) (*joinv1.Proof, error) {
	if err := j.send(&joinv1.JoinReply{Message: &joinv1.JoinReply_Challenge{Challenge: &joinv1.Challenge{Nonce: question}}}); err != nil {
		return nil, err
	}
	m, err := j.recv()
	if err != nil {
		return nil, err
	}
	proof := m.GetProof()
	switch {
	case proof == nil:
		return nil, deny(BadOrder, "to a challenge it answers %T", m.GetMessage())
	case len(proof.GetEvidence()) > maxEvidence:
		return nil, deny(TooLarge, "its evidence has %d bytes", len(proof.GetEvidence()))
	}
	return proof, nil
}

// verify hands the evidence to the verifier, whose further questions travel as challenges.
func (j *joining) verify(ctx context.Context, c attest.Claim) (admission.Evidence, error) {
	asked := 0
	evidence, err := j.Verifiers[j.hello.GetVerifier()].Verify(ctx, c, func(ctx context.Context, question []byte) ([]byte, error) {
		if asked++; asked > maxQuestions {
			return nil, errors.New("the verifier asks without end")
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		answer, err := j.ask(question)
		return answer.GetEvidence(), err
	})
	return evidence, err
}

// request is what the records are asked: what was proven, and what the machine claims beside it.
func (j *joining) request(evidence admission.Evidence) admission.Request {
	return admission.Request{
		Key: j.peer.Key, ClaimedNode: j.hello.GetNode(), Kubernetes: j.hello.GetKubernetes(), Address: j.facts.Address, Evidence: evidence,
		Facts: j.facts,
	}
}
