// SPDX-License-Identifier: Apache-2.0

package joinserver

import (
	"bytes"
	"context"
	"time"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/core/membership"
	"github.com/slipway-project/slipway/internal/core/wait"
)

const (
	memberInterval = 200 * time.Millisecond // between two questions to etcd's membership
	memberSilence  = 10 * time.Second       // a node says again every 5 s that it wants in; one that does not loses its turn
)

// joiningEtcd is how far a control plane is on its way into etcd, as far as this stream knows.
type joiningEtcd struct {
	answers chan memberReport // has room for the one question that is asked at a time
	tick    *time.Ticker      // runs while the node wants in
	asking  bool
	started bool
	heard   time.Time // when the node said last that it wants in
	told    membership.Progress
}

// memberReport is what became of a question.
type memberReport struct {
	answer membership.Progress
	err    error
}

// wantMember notes that the node wants in, and asks at once.
func (y *syncing) wantMember(ctx context.Context, started bool) error {
	if !y.ControlPlane(y.node.Pool) {
		return deny(NotControlPlane, "node %s of pool %s is no control plane", y.node.Name, y.node.Pool)
	}
	m := &y.member
	if m.told.Promoted {
		return y.send(promoted())
	}
	m.started, m.heard = started, y.Now()
	m.tick.Reset(memberInterval)
	y.askMembers(ctx)
	return nil
}

// askMembers asks beside the stream, because etcd may be slow: rosters and removals do not wait for it.
func (y *syncing) askMembers(ctx context.Context) {
	m := &y.member
	if y.Now().Sub(m.heard) > memberSilence {
		m.tick.Stop() // nobody renews its turn for it
		return
	}
	if m.asking {
		return
	}
	m.asking = true
	node, started := y.node, m.started
	go func() {
		answer, err := y.Members.Admit(ctx, node, started)
		m.answers <- memberReport{answer, err}
	}()
}

// tellMember sends what is new in an answer.
func (y *syncing) tellMember(r memberReport) error {
	m := &y.member
	m.asking = false
	answer := r.answer
	if r.err != nil {
		y.Log.Warn("etcd's membership does not answer", "node", y.node.Name, "error", r.err)
		answer = membership.Progress{Wait: &wait.For{What: "an answer about etcd's members", Who: "etcd of the control planes", Since: y.Now()}}
	}
	old := m.told
	m.told = answer
	if len(answer.Permit) == 0 { // it is not taken back: a wait in between does not make it new
		m.told.Permit, m.told.Discard = old.Permit, old.Discard
	}
	switch {
	case answer.Promoted:
		m.tick.Stop()
		y.audit(Promoted, "")
		return y.send(promoted())
	case len(answer.Permit) > 0 && (!bytes.Equal(answer.Permit, old.Permit) || answer.Discard != old.Discard):
		y.audit(Permitted, "")
		return y.send(&joinv1.SyncReply{Message: &joinv1.SyncReply_Permit{Permit: &joinv1.Permit{Content: answer.Permit, Discard: answer.Discard}}})
	case answer.Wait != nil && (old.Wait == nil || !old.Wait.Same(*answer.Wait)):
		return y.send(&joinv1.SyncReply{Message: &joinv1.SyncReply_Wait{Wait: wireWait(*answer.Wait)}})
	}
	return nil
}

func promoted() *joinv1.SyncReply {
	return &joinv1.SyncReply{Message: &joinv1.SyncReply_Promoted{Promoted: &joinv1.Promoted{}}}
}

func wireWait(w wait.For) *joinv1.Wait {
	wire := &joinv1.Wait{What: w.What, Who: w.Who}
	if !w.Since.IsZero() {
		wire.SinceUnixNano = w.Since.UnixNano()
	}
	return wire
}
