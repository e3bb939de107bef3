// SPDX-License-Identifier: Apache-2.0

package joinserver

import (
	"context"
	"errors"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/wait"
)

// Join lets one machine in. The caller bounds its time by the context and ends the stream when Join returns. What it returns is
// fit for the peer: a *rpc.Refusal, or nil when the machine has its certificates, went away after its grant, or was told to wait.
//
// It may break anywhere: what was decided is in the records by then, and the same machine gets the same answer again.
func (s *Server) Join(ctx context.Context, ch Channel, stream JoinStream) error {
	e, err := s.begin(ch, "join")
	if err == nil {
		err = (&joining{session: e, stream: stream}).run(ctx)
	}
	return e.end(err)
}

// joining is one machine's way in.
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
	if later, ok := errors.AsType[*wait.Error](err); ok {
		return j.wait(later.For)
	}
	if err != nil {
		return err
	}
	j.recorded(node)
	p, err := j.grant(ctx)
	if err != nil {
		return err
	}
	return j.certify(ctx, p)
}

// greet takes the hello and refuses what can be refused without any work.
func (j *joining) greet() error {
	m, err := j.recv()
	if err != nil {
		return err
	}
	hello := m.GetHello()
	if hello == nil {
		return deny(BadOrder, "its first message is %T, not a hello", m.GetMessage())
	}
	j.claim(hello.GetNode())
	j.hello = hello
	if err := j.checkHello(hello); err != nil {
		return err
	}
	if j.facts, err = machine.DecodeFacts(hello.GetFacts()); err != nil {
		return deny(Malformed, "%v", err)
	}
	return j.checkAddress(j.facts.Address)
}

// admit asks the records. They decide by the key, and by the name only where it says the same.
func (j *joining) admit(ctx context.Context, evidence admission.Evidence) (admission.Node, error) {
	request := j.request(evidence)
	gone, err := j.goneBefore(ctx)
	if err == nil && !gone.IsValid() && evidence.TokenID == "" {
		gone, err = j.silentHere(ctx)
	}
	if err != nil {
		return admission.Node{}, err
	}
	request.Gone = gone
	node, err := j.Records.Admit(ctx, request)
	switch {
	case err != nil:
		return admission.Node{}, err
	case node.Key != j.peer.Key || node.Removing:
		return admission.Node{}, errors.New("the records let in another machine than the one that asked")
	}
	return node, nil
}

func (j *joining) wait(w wait.For) error {
	j.audit(Waiting, w.What+": "+w.Who)
	return j.send(&joinv1.JoinReply{Message: &joinv1.JoinReply_Wait{Wait: wireWait(w)}})
}

// certify signs what the machine asks for. A machine that needs nothing may go instead.
func (j *joining) certify(ctx context.Context, p plan.Plan) error {
	m, err := j.recv()
	if err != nil {
		return err
	}
	keys := m.GetKeys()
	if keys == nil {
		return deny(BadOrder, "after its grant it sends %T, not its keys", m.GetMessage())
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
