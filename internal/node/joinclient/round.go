// SPDX-License-Identifier: Apache-2.0

package joinclient

import (
	"context"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"google.golang.org/protobuf/proto"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/core/handshake"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/wait"
)

// exchange is one join stream that has received its challenge.
type exchange struct {
	at       netip.AddrPort
	conn     Conn
	stream   JoinStream
	lifetime *lifetime
	hello    *joinv1.Hello
	nonce    []byte
	exporter []byte
	sealKey  *ecdh.PrivateKey
}

func (x *exchange) close() {
	x.lifetime.end()
	_ = x.conn.Close() // the exchange is complete or has failed with an error
}

// round asks all endpoints that are due, and completes the exchange with the first one that sends a challenge.
func (j *joiner) round(ctx context.Context) (Grant, error) {
	endpoints := j.Endpoints()
	due, next := j.history.due(endpoints)
	if len(due) == 0 {
		return Grant{}, &noAnswer{next, j.unreachable(endpoints)}
	}
	if j.status.last.What == "" {
		j.status.set(j.unreachable(endpoints))
	}
	open := func(race context.Context, at netip.AddrPort) (*exchange, error) {
		x, err := j.greet(ctx, race, at)
		return x, explainClock(race, at, err, j.Now, j.Clock)
	}
	x, ok := race(ctx, due, open, j.noChallenge)
	if !ok {
		_, next = j.history.due(endpoints)
		return Grant{}, &noAnswer{next, j.unreachable(endpoints)}
	}
	defer x.close()
	grant, err := j.complete(ctx, x)
	if err != nil {
		return Grant{}, &endpointError{x.at, explainClock(ctx, x.at, err, j.Now, j.Clock)}
	}
	j.history.succeeded(x.at)
	return grant, nil
}

// greet opens a stream, sends the hello and receives the challenge. It sends nothing secret.
func (j *joiner) greet(base, race context.Context, at netip.AddrPort) (_ *exchange, err error) {
	ctx, lifetime := newLifetime(base, race, attemptTime, "no challenge")
	x := &exchange{at: at, lifetime: lifetime}
	defer func() {
		if err == nil {
			lifetime.detach()
			return
		}
		err = lifetime.abort(base, x.conn, err)
	}()
	if x.conn, err = j.Dial(ctx, at); err != nil {
		return nil, err
	}
	if x.stream, err = x.conn.Join(ctx); err != nil {
		return nil, err
	}
	if x.exporter, err = x.stream.Exporter(); err != nil {
		return nil, err
	}
	if x.sealKey, err = ecdh.X25519().GenerateKey(rand.Reader); err != nil {
		return nil, fmt.Errorf("generate seal key: %w", err)
	}
	x.hello = &joinv1.Hello{
		Protocol: 1, Cluster: j.Pin.ClusterID(), Verifier: j.Prover.Kind(), Node: j.Node, Kubernetes: j.Kubernetes, Slipway: j.Slipway,
		SealKey: x.sealKey.PublicKey().Bytes(),
		Facts:   j.Facts.Encode(),
	}
	if err = send(x.stream, &joinv1.JoinRequest{Message: &joinv1.JoinRequest_Hello{Hello: x.hello}}); err != nil {
		return nil, err
	}
	reply, err := x.stream.Recv()
	if err != nil {
		return nil, err
	}
	x.nonce = reply.GetChallenge().GetNonce()
	if len(x.nonce) != handshake.NonceSize || len(x.exporter) != handshake.ExporterSize {
		return nil, protocolErrorf("unexpected reply to the hello: %T with a nonce of %d bytes", reply.GetMessage(), len(x.nonce))
	}
	return x, nil
}

// complete proves the right to join, and receives the grant and the certificates.
func (j *joiner) complete(ctx context.Context, x *exchange) (g Grant, err error) {
	limit := float64(attemptTime)
	for range j.timeouts { // the cluster is slow
		limit *= pauseFactor
	}
	x.lifetime.limit(time.Duration(min(limit, float64(maxAttemptTime))), "no answer")
	defer func() {
		if cause := x.lifetime.cause(); cause != nil && err != nil && ctx.Err() == nil {
			err = cause
			j.timeouts++
		}
	}()
	proof, err := j.proof(ctx, x)
	if err != nil {
		return g, &localError{err}
	}
	if err := send(x.stream, &joinv1.JoinRequest{Message: &joinv1.JoinRequest_Proof{Proof: proof}}); err != nil {
		return g, err
	}
	granted, err := j.awaitGrant(ctx, x)
	if err != nil {
		return g, err
	}
	g, err = j.openGrant(x, granted)
	if err != nil {
		return Grant{}, err
	}
	g.Certificates, err = j.certify(x, g.Ticket.Plan)
	if err != nil {
		return Grant{}, err
	}
	return g, nil
}

// proof signs the connection, the nonce and the hello with the machine's key.
func (j *joiner) proof(ctx context.Context, x *exchange) (*joinv1.Proof, error) {
	hello, err := proto.MarshalOptions{Deterministic: true}.Marshal(x.hello)
	if err != nil {
		return nil, fmt.Errorf("encode hello: %w", err)
	}
	digest := handshake.Transcript{Exporter: x.exporter, Nonce: x.nonce, Hello: hello}.Digest()
	signature, err := ecdsa.SignASN1(rand.Reader, j.Key, digest[:])
	if err != nil {
		return nil, fmt.Errorf("sign proof: %w", err)
	}
	evidence, err := j.Prover.Evidence(ctx, x.nonce, x.exporter)
	if err != nil {
		return nil, fmt.Errorf("prove the right to join (%s): %w", j.Prover.Kind(), err)
	}
	return &joinv1.Proof{Signature: signature, Evidence: evidence}, nil
}

// awaitGrant answers the verifier's questions until the grant arrives. If the machine has to wait first, it returns a *wait.Error.
func (j *joiner) awaitGrant(ctx context.Context, x *exchange) (*joinv1.Grant, error) {
	for {
		reply, err := x.stream.Recv()
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
				return nil, protocolErrorf("answer the verifier's question: %v", err)
			}
			err = send(x.stream, &joinv1.JoinRequest{Message: &joinv1.JoinRequest_Proof{Proof: &joinv1.Proof{Evidence: answer}}})
			if err != nil {
				return nil, err
			}
		default:
			return nil, protocolErrorf("unexpected reply to the proof: %T", reply.GetMessage())
		}
	}
}

// certify requests the certificates of the plan that the join service issues.
func (j *joiner) certify(x *exchange, p plan.Plan) (map[string][]byte, error) {
	var wants []pki.Want
	for _, e := range p.Entries {
		if c, ok := e.Item.(plan.Cert); ok && c.Want.Kind == pki.Leaf && c.Want.SignerKey == "" {
			wants = append(wants, c.Want)
		}
	}
	requests := make(map[string][]byte, len(wants))
	for _, w := range wants {
		csr, err := j.Keys.Request(w)
		if err != nil {
			return nil, &localError{fmt.Errorf("make key for %s: %w", w.Name, err)}
		}
		requests[w.Name] = csr
	}
	err := send(x.stream, &joinv1.JoinRequest{Message: &joinv1.JoinRequest_Keys{Keys: &joinv1.Keys{Requests: requests}}})
	if err != nil {
		return nil, err
	}
	reply, err := x.stream.Recv()
	if err != nil {
		return nil, err
	}
	if reply.GetCertificates() == nil {
		return nil, protocolErrorf("unexpected reply to the certificate requests: %T", reply.GetMessage())
	}
	_ = x.stream.CloseSend() // everything has arrived, and the server also sees the end of the connection
	certificates := reply.GetCertificates().GetCertificates()
	return certificates, checkCertificates(wants, requests, certificates, j.Now())
}

// send sends a message. If the server has ended the stream, gRPC's Send returns only io.EOF; then send returns the server's reason.
func send(stream JoinStream, m *joinv1.JoinRequest) error {
	err := stream.Send(m)
	if !errors.Is(err, io.EOF) {
		return err
	}
	if _, reason := stream.Recv(); reason != nil {
		return reason
	}
	return err
}
