// SPDX-License-Identifier: Apache-2.0

package joinclient

import (
	"context"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/rand"
	"fmt"
	"net/netip"

	"google.golang.org/protobuf/proto"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/core/handshake"
)

// joining is one machine's way in, through as many rounds as it takes.
type joining struct {
	Config
	places  *places
	says    reporter
	refused int // how often in a row
	slow    int // proofs in a row that got no answer in time
}

// talk is one stream, opened as far as its challenge.
type talk struct {
	at       netip.AddrPort
	conn     Conn
	stream   JoinStream
	leash    *leash
	hello    *joinv1.Hello
	nonce    []byte
	exporter []byte
	sealKey  *ecdh.PrivateKey
}

func (t *talk) close() {
	t.leash.end()
	_ = t.conn.Close() // nothing is lost with it
}

// round asks all endpoints that are due, and goes on with the first that gives a challenge.
func (j *joining) round(ctx context.Context) (Grant, error) {
	endpoints := j.Endpoints()
	due, soon := j.places.due(endpoints)
	if len(due) == 0 {
		return Grant{}, &pause{soon, j.unreachable(endpoints)}
	}
	if j.says.last.What == "" {
		j.says.tell(j.unreachable(endpoints))
	}
	open := func(race context.Context, at netip.AddrPort) (*talk, error) {
		t, err := j.greet(ctx, race, at)
		return t, clocks(race, at, err, j.Now, j.Clock)
	}
	t, ok := race(ctx, due, open, j.failed)
	if !ok {
		_, soon = j.places.due(endpoints)
		return Grant{}, &pause{soon, j.unreachable(endpoints)}
	}
	defer t.close()
	grant, err := j.talk(ctx, t)
	if err != nil {
		return Grant{}, &broken{t.at, clocks(ctx, t.at, err, j.Now, j.Clock)}
	}
	j.places.good(t.at)
	return grant, nil
}

// greet opens a stream as far as its challenge. Until then nothing but public things are said.
func (j *joining) greet(base, race context.Context, at netip.AddrPort) (_ *talk, err error) {
	ctx, leash := newLeash(base, race, attemptTime, "no challenge")
	t := &talk{at: at, leash: leash}
	defer func() {
		if err == nil {
			leash.free()
			return
		}
		err = leash.broken(base, t.conn, err)
	}()
	if t.conn, err = j.Dial(ctx, at); err != nil {
		return nil, err
	}
	if t.stream, err = t.conn.Join(ctx); err != nil {
		return nil, err
	}
	if t.exporter, err = t.stream.Exporter(); err != nil {
		return nil, err
	}
	if t.sealKey, err = ecdh.X25519().GenerateKey(rand.Reader); err != nil {
		return nil, fmt.Errorf("make seal key: %w", err)
	}
	t.hello = j.hello(t.sealKey)
	if err = send(t.stream, &joinv1.JoinRequest{Message: &joinv1.JoinRequest_Hello{Hello: t.hello}}); err != nil {
		return nil, err
	}
	reply, err := t.stream.Recv()
	if err != nil {
		return nil, err
	}
	t.nonce = reply.GetChallenge().GetNonce()
	if len(t.nonce) != handshake.NonceSize || len(t.exporter) != handshake.ExporterSize {
		return nil, odd("to a hello it answers %T with %d bytes", reply.GetMessage(), len(t.nonce))
	}
	return t, nil
}

func (j *joining) hello(sealKey *ecdh.PrivateKey) *joinv1.Hello {
	return &joinv1.Hello{
		Protocol: 1, Cluster: j.Pin.ClusterID(), Verifier: j.Prover.Kind(), Node: j.Node, Kubernetes: j.Kubernetes, Slipway: j.Slipway,
		SealKey: sealKey.PublicKey().Bytes(),
		Facts:   j.Facts.Encode(),
	}
}

// proof signs this connection, this nonce and the hello.
func (j *joining) proof(ctx context.Context, t *talk) (*joinv1.Proof, error) {
	hello, err := proto.MarshalOptions{Deterministic: true}.Marshal(t.hello)
	if err != nil {
		return nil, fmt.Errorf("write hello: %w", err)
	}
	digest := handshake.Transcript{Exporter: t.exporter, Nonce: t.nonce, Hello: hello}.Digest()
	signature, err := ecdsa.SignASN1(rand.Reader, j.Key, digest[:])
	if err != nil {
		return nil, fmt.Errorf("sign proof: %w", err)
	}
	evidence, err := j.Prover.Evidence(ctx, t.nonce, t.exporter)
	if err != nil {
		return nil, fmt.Errorf("prove the right to join (%s): %w", j.Prover.Kind(), err)
	}
	return &joinv1.Proof{Signature: signature, Evidence: evidence}, nil
}
