// SPDX-License-Identifier: Apache-2.0

package joinserver

import (
	"context"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/hpke"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/attest"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/handshake"
	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/wait"
)

// protocol is the only version of the join protocol that this service speaks.
const protocol = 1

// Limits of what a client may send before it has proven anything. maxName is Kubernetes' limit for DNS labels.
const (
	maxName     = 63
	maxVersion  = 64
	maxID       = 64
	maxEvidence = 4096
)

const (
	nonceLife    = time.Minute // an honest machine answers at once; this limits the time of a relay
	maxQuestions = 4           // of a verifier
)

// Join admits one machine. The caller limits its time by ctx and ends the stream when Join returns. The result is fit for the peer: a
// *rpc.Refusal, or nil if the machine has its certificates, ended the stream after its grant, or was told to wait.
//
// Join may be interrupted anywhere. Every decision is written to the records first, so the same machine gets the same answer again.
func (s *Server) Join(ctx context.Context, ch Channel, stream JoinStream) error {
	e, err := s.begin(ch, "join")
	if err == nil {
		err = (&joining{session: e, stream: stream}).run(ctx)
	}
	return e.end(err)
}

// joining is the session of a machine that joins.
type joining struct {
	*session
	stream JoinStream
	hello  *joinv1.Hello
	facts  machine.Facts // decoded from the hello
}

func (j *joining) run(ctx context.Context) error {
	if err := j.greet(); err != nil {
		return err
	}
	evidence, err := j.prove(ctx)
	if err != nil {
		return err
	}
	node, err := j.admit(ctx, evidence)
	if w, ok := errors.AsType[*wait.Error](err); ok {
		j.audit(Waiting, w.What+": "+w.Who)
		return j.send(&joinv1.JoinReply{Message: &joinv1.JoinReply_Wait{Wait: wireWait(w.For)}})
	}
	if err != nil {
		return err
	}
	j.setNode(node)
	p, err := j.grant(ctx)
	if err != nil {
		return err
	}
	return j.certify(ctx, p)
}

// greet receives the hello, and refuses what can be refused without a signature or a question to the records.
func (j *joining) greet() error {
	m, err := j.recv()
	if err != nil {
		return err
	}
	h := m.GetHello()
	if h == nil {
		return deny(BadOrder, "its first message is %T, want a hello", m.GetMessage())
	}
	j.claim(h.GetNode())
	j.hello = h
	if err := checkHello(h); err != nil {
		return err
	}
	switch {
	case h.GetProtocol() != protocol:
		text := fmt.Sprintf("join protocol %d is not supported, only %d: use the same version of slipway on all machines", h.GetProtocol(), protocol)
		return &refusal{reason: BadProtocol, code: codes.FailedPrecondition, detail: text, public: text}
	case h.GetCluster() != j.Cluster:
		return deny(BadCluster, "it wants to join cluster %s, this is %s", h.GetCluster(), j.Cluster)
	case j.Verifiers[h.GetVerifier()] == nil:
		return deny(BadVerifier, "unknown verifier %q", h.GetVerifier())
	case j.peer.Key == j.Self:
		return deny(OwnNode, "this is the machine of the join service itself")
	}
	if j.facts, err = machine.DecodeFacts(h.GetFacts()); err != nil {
		return deny(Malformed, "%v", err)
	}
	// With another address, the machine is behind address translation, or its hello was replayed by another machine.
	if from := j.address(); j.facts.Address != from {
		return deny(BadAddress, "it reports the address %s and connects from %s", j.facts.Address, from)
	}
	return nil
}

// checkHello checks the lengths and characters of a hello.
func checkHello(h *joinv1.Hello) error {
	for _, f := range [...]struct {
		what, text string
		limit      int
	}{
		{"cluster", h.GetCluster(), maxID},
		{"verifier", h.GetVerifier(), maxName},
		{"kubernetes", h.GetKubernetes(), maxVersion},
		{"slipway", h.GetSlipway(), maxVersion},
	} {
		if len(f.text) > f.limit || !visible(f.text) {
			return deny(Malformed, "%s: %d bytes, want at most %d of visible ASCII: %.40q", f.what, len(f.text), f.limit, f.text)
		}
	}
	if n := h.GetNode(); n != "" && !isNodeName(n) {
		return deny(Malformed, "node name: %d bytes, want a DNS label of at most %d: %.40q", len(n), maxName, n)
	}
	if len(h.GetSealKey()) != handshake.SealKeySize {
		return deny(Malformed, "seal key: %d bytes, want %d", len(h.GetSealKey()), handshake.SealKeySize)
	}
	return nil
}

// visible reports whether the text is visible ASCII without spaces.
func visible(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' })
}

func isNodeName(name string) bool {
	outside := func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' }
	return name != "" && len(name) <= maxName && !strings.ContainsFunc(name, outside) && name[0] != '-' && name[len(name)-1] != '-'
}

// prove challenges the machine: it must sign this connection, a new nonce and its own hello, and the verifier must accept its
// evidence. The nonce is valid for this call only.
func (j *joining) prove(ctx context.Context) (admission.Evidence, error) {
	exporter, err := j.ch.Exporter()
	if err != nil || len(exporter) != handshake.ExporterSize {
		return admission.Evidence{}, fmt.Errorf("export secret of the TLS session: got %d bytes, want %d: %w", len(exporter), handshake.ExporterSize, err)
	}
	hello, err := proto.MarshalOptions{Deterministic: true}.Marshal(j.hello)
	if err != nil {
		return admission.Evidence{}, deny(Malformed, "its hello cannot be encoded again: %v", err)
	}
	nonce := make([]byte, handshake.NonceSize)
	if _, err := rand.Read(nonce); err != nil {
		return admission.Evidence{}, fmt.Errorf("make nonce: %w", err)
	}
	sent := j.Now()
	proof, err := j.ask(nonce)
	if err != nil {
		return admission.Evidence{}, err
	}
	if took := j.Now().Sub(sent); took > nonceLife {
		return admission.Evidence{}, deny(Late, "its proof came after %s, want at most %s", took.Round(time.Second), nonceLife)
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
	claim := attest.Claim{
		Key: j.peer.Key, Cluster: j.Cluster, Node: j.hello.GetNode(), Nonce: nonce, Exporter: exporter, Evidence: proof.GetEvidence(),
	}
	asked := 0
	return j.Verifiers[j.hello.GetVerifier()].Verify(ctx, claim, func(ctx context.Context, question []byte) ([]byte, error) {
		if asked++; asked > maxQuestions {
			return nil, fmt.Errorf("the verifier asks more than %d questions", maxQuestions)
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		answer, err := j.ask(question)
		return answer.GetEvidence(), err
	})
}

// ask sends a challenge and receives the proof.
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
		return nil, deny(BadOrder, "its answer to a challenge is %T, want a proof", m.GetMessage())
	case len(proof.GetEvidence()) > maxEvidence:
		return nil, deny(TooLarge, "its evidence has %d bytes, want at most %d", len(proof.GetEvidence()), maxEvidence)
	}
	return proof, nil
}

// admit asks the records, which decide by the key. The claimed name counts only if it agrees with the decision.
func (j *joining) admit(ctx context.Context, evidence admission.Evidence) (admission.Node, error) {
	silent, err := j.silentBefore(ctx)
	if err == nil && !silent.IsValid() && evidence.TokenID == "" {
		silent, err = j.silentHere(ctx)
	}
	if err != nil {
		return admission.Node{}, err
	}
	node, err := j.Records.Admit(ctx, admission.Request{
		Key: j.peer.Key, ClaimedNode: j.hello.GetNode(), Kubernetes: j.hello.GetKubernetes(), Address: j.facts.Address, Evidence: evidence,
		Facts: j.facts, Gone: silent,
	})
	switch {
	case err != nil:
		return admission.Node{}, err
	case node.Key != j.peer.Key || node.Removing:
		return admission.Node{}, fmt.Errorf("admit machine: the records admitted another one, node %s", node.Name)
	}
	return node, nil
}

// silentBefore returns the address of the record that has this machine's key, if no machine answers there. It reads the record only
// if the list of nodes says that the machine comes from another address.
func (j *joining) silentBefore(ctx context.Context) (netip.Addr, error) {
	n, found, known := j.nodes.byKey(j.peer.Key)
	if known && (!found || !j.isElsewhere(n)) {
		return netip.Addr{}, nil
	}
	n, found, err := j.Records.ByKey(ctx, j.peer.Key)
	if err != nil || !found {
		return netip.Addr{}, err
	}
	return j.silentAddress(ctx, n)
}

// silentHere returns the address of this machine if the node of another key has it and is silent, and if the spec allows a machine
// of the node's pool to be replaced by address.
func (j *joining) silentHere(ctx context.Context) (netip.Addr, error) {
	n, found := j.nodes.byAddress(j.address())
	if !found || n.Key == "" || n.Key == j.peer.Key || j.ByAddress == nil || !j.ByAddress(n.Pool) || j.limits.hasStreamElsewhere(n.Key, netip.Addr{}) {
		return netip.Addr{}, nil
	}
	recent, err := j.Heartbeat(ctx, n.Name)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("ask for the heartbeat of node %s: %w", n.Name, err)
	}
	if recent {
		return netip.Addr{}, nil
	}
	return n.Address, nil
}

// grant sends the machine its ticket, with secrets sealed to the machine's key if it is a control plane.
func (j *joining) grant(ctx context.Context) (plan.Plan, error) {
	ticket, secrets, err := j.ticket(ctx)
	if err != nil {
		return plan.Plan{}, err
	}
	text, err := json.Marshal(ticket)
	if err != nil {
		return plan.Plan{}, fmt.Errorf("encode ticket: %w", err)
	}
	var sealed []byte
	if len(secrets) > 0 {
		err = j.work(ctx, func() error {
			sealed, err = j.seal(secrets)
			return err
		})
	}
	if err != nil {
		return plan.Plan{}, err
	}
	j.audit(Granted, fmt.Sprintf("pool %s, address %s, %d secrets", j.node.Pool, j.node.Address, len(secrets)))
	return ticket.Plan, j.send(&joinv1.JoinReply{Message: &joinv1.JoinReply_Grant{Grant: &joinv1.Grant{Ticket: text, Sealed: sealed}}})
}

// seal encrypts to the key in the hello. The machine's proof covers the hello, so a relay cannot have replaced the key.
func (j *joining) seal(secrets []plan.TicketFile) ([]byte, error) {
	public, err := ecdh.X25519().NewPublicKey(j.hello.GetSealKey())
	if err != nil {
		return nil, deny(Malformed, "invalid seal key: %v", err)
	}
	to, err := hpke.NewDHKEMPublicKey(public)
	if err != nil {
		return nil, deny(Malformed, "invalid seal key: %v", err)
	}
	text, err := json.Marshal(secrets)
	if err != nil {
		return nil, fmt.Errorf("encode secrets: %w", err)
	}
	sealed, err := hpke.Seal(to, hpke.HKDFSHA256(), hpke.AES256GCM(), handshake.SealInfo(j.Cluster, j.node.Name, j.peer.Key), text)
	if err != nil {
		return nil, deny(Malformed, "seal to its key: %v", err)
	}
	return sealed, nil
}

// certify signs what the machine asks for. A machine that needs no certificate may end the stream instead.
func (j *joining) certify(ctx context.Context, p plan.Plan) error {
	m, err := j.recv()
	if err != nil {
		return err
	}
	keys := m.GetKeys()
	if keys == nil {
		return deny(BadOrder, "its message after the grant is %T, want keys", m.GetMessage())
	}
	certificates, err := j.sign(ctx, p, keys.GetRequests())
	if err != nil {
		return err
	}
	return j.send(&joinv1.JoinReply{Message: &joinv1.JoinReply_Certificates{Certificates: &joinv1.Certificates{Certificates: certificates}}})
}

func (j *joining) recv() (*joinv1.JoinRequest, error) {
	m, err := j.stream.Recv()
	if err != nil {
		return nil, &lost{err}
	}
	return m, nil
}

func (j *joining) send(m *joinv1.JoinReply) error {
	if err := j.stream.Send(m); err != nil {
		return &lost{err}
	}
	return nil
}
