// SPDX-License-Identifier: Apache-2.0

package joinclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/wait"
)

// talk goes on from the challenge to the certificates.
func (j *joining) talk(ctx context.Context, t *talk) (g Grant, err error) {
	t.leash.limit(j.patience(), "no answer")
	defer func() {
		if why := t.leash.cause(); why != nil && err != nil && ctx.Err() == nil {
			err = why
			j.slow++
		}
	}()
	proof, err := j.proof(ctx, t)
	if err != nil {
		return g, &local{err}
	}
	if err := send(t.stream, &joinv1.JoinRequest{Message: &joinv1.JoinRequest_Proof{Proof: proof}}); err != nil {
		return g, err
	}
	granted, err := j.verdict(ctx, t)
	if err != nil {
		return g, err
	}
	g, err = j.open(t, granted)
	if err != nil {
		return Grant{}, err
	}
	g.Certificates, err = j.certify(t, g.Ticket.Plan)
	if err != nil {
		return Grant{}, err
	}
	return g, nil
}

// patience is how long a proof may stay without an answer; it grows when the cluster is slow.
func (j *joining) patience() time.Duration {
	d := float64(attemptTime)
	for range j.slow {
		d *= pauseFactor
	}
	return time.Duration(min(d, float64(attemptMost)))
}

// verdict waits for the grant and answers a verifier's questions until then.
func (j *joining) verdict(ctx context.Context, t *talk) (*joinv1.Grant, error) {
	for {
		reply, err := t.stream.Recv()
		if err != nil {
			return nil, err
		}
		switch m := reply.GetMessage().(type) {
		case *joinv1.JoinReply_Grant:
			return m.Grant, nil
		case *joinv1.JoinReply_Wait:
			return nil, &wait.Error{For: fromWire(m.Wait)}
		case *joinv1.JoinReply_Challenge:
			answer, err := j.Prover.Answer(ctx, m.Challenge.GetNonce())
			if err != nil {
				return nil, odd("it asks more than this machine can answer: %v", err)
			}
			err = send(t.stream, &joinv1.JoinRequest{Message: &joinv1.JoinRequest_Proof{Proof: &joinv1.Proof{Evidence: answer}}})
			if err != nil {
				return nil, err
			}
		default:
			return nil, odd("to a proof it answers %T", reply.GetMessage())
		}
	}
}

// certify asks for the certificates that the plan leaves to the join service.
func (j *joining) certify(t *talk, p plan.Plan) (map[string][]byte, error) {
	wants := remote(p)
	requests := make(map[string][]byte, len(wants))
	for _, w := range wants {
		csr, err := j.Keys.Request(w)
		if err != nil {
			return nil, &local{fmt.Errorf("make key for %s: %w", w.Name, err)}
		}
		requests[w.Name] = csr
	}
	err := send(t.stream, &joinv1.JoinRequest{Message: &joinv1.JoinRequest_Keys{Keys: &joinv1.Keys{Requests: requests}}})
	if err != nil {
		return nil, err
	}
	reply, err := t.stream.Recv()
	if err != nil {
		return nil, err
	}
	if reply.GetCertificates() == nil {
		return nil, odd("to its keys it answers %T", reply.GetMessage())
	}
	_ = t.stream.CloseSend() // we have all; the server sees the end anyway
	certificates := reply.GetCertificates().GetCertificates()
	return certificates, checkCertificates(wants, requests, certificates, j.Now())
}

// remote are the certificates that a plan leaves to the join service.
func remote(p plan.Plan) (wants []pki.Want) {
	for _, e := range p.Entries {
		if c, ok := e.Item.(plan.Cert); ok && c.Want.Kind == pki.Leaf && c.Want.SignerKey == "" {
			wants = append(wants, c.Want)
		}
	}
	return wants
}

// send hides gRPC's custom to say "EOF" when the other side has ended the stream: the reason comes with the next message.
func send(stream JoinStream, m *joinv1.JoinRequest) error {
	err := stream.Send(m)
	if !errors.Is(err, io.EOF) {
		return err
	}
	if _, why := stream.Recv(); why != nil {
		return why
	}
	return err
}
