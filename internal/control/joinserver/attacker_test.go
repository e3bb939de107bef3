// SPDX-License-Identifier: Apache-2.0

package joinserver_test

import (
	"context"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"net"
	"net/netip"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/core/handshake"
	coremachine "github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/rpc"
)

// talk is a join stream that is spoken by hand.
type talk struct {
	t        testing.TB
	m        *machine
	stream   joinv1.Join_JoinClient
	exporter []byte
	nonce    []byte
	hello    *joinv1.Hello
	sealKey  *ecdh.PrivateKey
}

// soon bounds an attack: one that the service does not end is a failure, and not a reason to wait.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// conn connects with the machine's key, from its address.
func (m *machine) conn(t testing.TB) *grpc.ClientConn {
	t.Helper()
	certificate, err := rpc.SelfSigned(m.key, "attacker", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return m.connWith(t, certificate)
}

func (m *machine) connWith(t testing.TB, certificate *tls.Certificate) *grpc.ClientConn {
	t.Helper()
	conn, err := rpc.Dial(m.w.endpoint.String(), rpc.ClientOptions{CAPin: m.w.pin, Certificate: certificate, Dialer: m.dialTCP})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (m *machine) dialTCP(ctx context.Context, to string) (net.Conn, error) {
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(m.address, 0))}
	return d.DialContext(ctx, "tcp", to)
}

func (m *machine) talk(t testing.TB) *talk {
	t.Helper()
	return m.talkOn(t, m.conn(t))
}

func (m *machine) talkOn(t testing.TB, conn *grpc.ClientConn) *talk {
	t.Helper()
	stream, err := joinv1.NewJoinClient(conn).Join(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	k := &talk{t: t, m: m, stream: stream}
	if k.exporter, err = rpc.Exporter(stream.Context()); err != nil {
		t.Fatal(err)
	}
	if k.sealKey, err = ecdh.X25519().GenerateKey(rand.Reader); err != nil {
		t.Fatal(err)
	}
	verifier := "key"
	if m.token != "" {
		verifier = "token"
	}
	k.hello = &joinv1.Hello{
		Protocol: 1, Cluster: m.w.id, Verifier: verifier, Node: m.node, Kubernetes: m.version, Slipway: "0.3.0", SealKey: k.sealKey.PublicKey().Bytes(),
		Facts: coremachine.Facts{Address: m.address}.Encode(),
	}
	return k
}

// send ignores errors: what the server thinks of it comes with the next reply.
func (k *talk) send(m *joinv1.JoinRequest) *talk {
	_ = k.stream.Send(m)
	return k
}

func (k *talk) sendHello() *talk {
	return k.send(&joinv1.JoinRequest{Message: &joinv1.JoinRequest_Hello{Hello: k.hello}})
}

func (k *talk) sendKeys(requests map[string][]byte) *talk {
	return k.send(&joinv1.JoinRequest{Message: &joinv1.JoinRequest_Keys{Keys: &joinv1.Keys{Requests: requests}}})
}

func (k *talk) sendProof(signature []byte, evidence string) *talk {
	return k.send(&joinv1.JoinRequest{Message: &joinv1.JoinRequest_Proof{Proof: &joinv1.Proof{Signature: signature, Evidence: []byte(evidence)}}})
}

// end is what the server says last.
func (k *talk) end() error {
	for {
		if _, err := k.stream.Recv(); err != nil {
			return err
		}
	}
}

// challenged goes as far as the challenge.
func (k *talk) challenged() *talk {
	k.t.Helper()
	k.sendHello()
	reply, err := k.stream.Recv()
	if err != nil {
		k.t.Fatalf("instead of a challenge: %v; audit: %v", err, k.m.w.audit())
	}
	k.nonce = reply.GetChallenge().GetNonce()
	return k
}

// signature is what an honest machine would send, but for what was changed in k before.
func (k *talk) signature(key *ecdsa.PrivateKey) []byte {
	k.t.Helper()
	hello, err := proto.MarshalOptions{Deterministic: true}.Marshal(k.hello)
	if err != nil {
		k.t.Fatal(err)
	}
	digest := handshake.Transcript{Exporter: k.exporter, Nonce: k.nonce, Hello: hello}.Digest()
	sig, err := ecdsa.SignASN1(rand.Reader, key, digest[:])
	if err != nil {
		k.t.Fatal(err)
	}
	return sig
}

// proven goes as far as an honest proof, without looking at the answer.
func (k *talk) proven() *talk {
	k.t.Helper()
	k.challenged()
	return k.sendProof(k.signature(k.m.key), k.m.token)
}

// granted goes as far as the grant.
func (k *talk) granted() *talk {
	k.t.Helper()
	k.proven()
	reply, err := k.stream.Recv()
	if err != nil || reply.GetGrant() == nil {
		k.t.Fatalf("instead of a grant: %v, %v; audit: %v", reply, err, k.m.w.audit())
	}
	return k
}

// syncTalk is a node's stream that is spoken by hand.
type syncTalk struct {
	t      testing.TB
	m      *machine
	stream joinv1.Join_SyncClient
}

func (m *machine) sync(t testing.TB) *syncTalk {
	t.Helper()
	stream, err := joinv1.NewJoinClient(m.conn(t)).Sync(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	return &syncTalk{t, m, stream}
}

func (k *syncTalk) send(m *joinv1.SyncRequest) *syncTalk {
	_ = k.stream.Send(m)
	return k
}

func (k *syncTalk) sendHello(cluster, node string) *syncTalk {
	return k.send(&joinv1.SyncRequest{Message: &joinv1.SyncRequest_Hello{Hello: &joinv1.SyncHello{Cluster: cluster, Node: node, Slipway: "0.3.0"}}})
}

func (k *syncTalk) sendKeys(requests map[string][]byte) *syncTalk {
	return k.send(&joinv1.SyncRequest{Message: &joinv1.SyncRequest_Keys{Keys: &joinv1.Keys{Requests: requests}}})
}

func (k *syncTalk) sendMember(started bool) *syncTalk {
	return k.send(&joinv1.SyncRequest{Message: &joinv1.SyncRequest_Member{Member: &joinv1.Member{Started: started}}})
}

func (k *syncTalk) end() error {
	for {
		if _, err := k.stream.Recv(); err != nil {
			return err
		}
	}
}
