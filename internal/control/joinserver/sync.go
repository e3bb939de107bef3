// SPDX-License-Identifier: Apache-2.0

package joinserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/membership"
	"github.com/slipway-project/slipway/internal/core/wait"
)

const (
	helloTimeout   = 10 * time.Second       // the call itself has no time limit
	memberInterval = 200 * time.Millisecond // between two calls of Members.Admit
	memberSilence  = 10 * time.Second       // a node repeats every 2 s that it wants to join etcd; after this silence its lease is not renewed
)

// Sync serves one node for as long as its stream and its record exist: new rosters, certificates for new keys, and the steps of
// joining etcd. The result is fit for the peer.
func (s *Server) Sync(ctx context.Context, ch Channel, stream SyncStream) error {
	e, err := s.begin(ch, "sync")
	if err == nil {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		err = (&syncing{session: e, stream: stream}).run(ctx)
	}
	return e.end(err)
}

// syncing is the session of a node. Only the goroutine of run sends, so messages keep their order.
type syncing struct {
	*session
	stream     SyncStream
	generation uint64 // of the roster that the node has
	member     joiningEtcd
}

func (y *syncing) run(ctx context.Context) error {
	node, err := y.record(ctx) // first: do not wait for a hello from an unknown machine
	if err != nil {
		return err
	}
	if !y.limits.openStream(node.Key) {
		y.setNode(node)
		return tooMuch("node %s has %d streams", node.Name, maxStreams)
	}
	defer y.limits.closeStream(node.Key)
	in := receive(ctx, y.stream.Recv)
	if err := y.greet(ctx, in, node); err != nil {
		return err
	}
	y.limits.addAddress(node.Key, y.address())
	defer y.limits.removeAddress(node.Key, y.address())
	tick := time.NewTicker(memberInterval)
	defer tick.Stop()
	tick.Stop()
	y.member = joiningEtcd{answers: make(chan memberAnswer, 1), tick: tick}
	for {
		records := y.nodes.changed.Wait()
		retry, err := y.checkRecord(ctx)
		if err != nil {
			return err
		}
		rosters, err := y.sendRoster()
		if err != nil {
			return err
		}
		select {
		case m := <-in.messages:
			err = y.handle(ctx, m)
		case err = <-in.end: // also when the context ends, then with the reason
		case <-tick.C:
			y.askMembers(ctx)
		case a := <-y.member.answers:
			err = y.sendProgress(a)
		case <-records:
		case <-retry:
		case <-rosters:
		}
		if err != nil {
			return err
		}
	}
}

// greet receives the hello and compares it with the record of the peer's key.
func (y *syncing) greet(ctx context.Context, in inbox[*joinv1.SyncRequest], node admission.Node) error {
	var m *joinv1.SyncRequest
	select {
	case m = <-in.messages:
	case err := <-in.end:
		return err
	case <-time.After(helloTimeout):
		return deny(Late, "no hello within %s", helloTimeout)
	}
	hello := m.GetHello()
	if hello == nil {
		return deny(BadOrder, "its first message is %T, want a hello", m.GetMessage())
	}
	y.claim(hello.GetNode())
	switch {
	case len(hello.GetNode()) > maxName, len(hello.GetCluster()) > maxID, len(hello.GetSlipway()) > maxVersion, !visible(hello.GetSlipway()):
		return deny(Malformed, "a field of its hello is too long or not visible ASCII")
	case hello.GetCluster() != y.Cluster:
		return deny(BadCluster, "its cluster is %.64q, this is %s", hello.GetCluster(), y.Cluster)
	case node.Name != hello.GetNode():
		return deny(OtherNode, "it claims to be node %q, its key is that of node %s", hello.GetNode(), node.Name)
	}
	y.setNode(node)
	node, err := y.updateAddress(ctx, node)
	if err != nil {
		return err
	}
	y.setNode(node)
	y.generation = hello.GetGeneration()
	y.audit(Synced, fmt.Sprintf("slipway %s, roster %d", hello.GetSlipway(), y.generation))
	return nil
}

// updateAddress admits a node whose address is not the record's as if it joined again: the records then follow a worker that has
// moved, and refuse a second machine with the key while the first is alive.
func (y *syncing) updateAddress(ctx context.Context, n admission.Node) (admission.Node, error) {
	if !y.isElsewhere(n) {
		return n, nil
	}
	silent, err := y.silentAddress(ctx, n)
	if err != nil {
		return n, err
	}
	moved, err := y.Records.Admit(ctx, admission.Request{
		Key: n.Key, ClaimedNode: n.Name, Kubernetes: n.Kubernetes, Address: y.address(), Facts: n.Facts, Gone: silent,
	})
	if err != nil {
		return n, err
	}
	if moved.Key != n.Key || moved.Name != n.Name {
		return n, fmt.Errorf("admit node %s at %s: the records admitted another one, node %s", n.Name, y.address(), moved.Name)
	}
	y.audit(Moved, fmt.Sprintf("from %s to %s", n.Address, y.address()))
	return moved, nil
}

// checkRecord ends the stream of a node that was removed or now has another address. It asks the records before it does so, because
// the list of nodes may be older than a new record. If they do not answer, it returns when to check again.
func (y *syncing) checkRecord(ctx context.Context) (retry <-chan time.Time, err error) {
	listed, found, _ := y.nodes.byKey(y.peer.Key)
	if !y.nodes.isRemoved(y.peer.Key) && (!found || !y.isElsewhere(listed)) {
		return nil, nil
	}
	node, err := y.record(ctx)
	if err == nil {
		return nil, y.checkAddress(node)
	}
	if r, ok := errors.AsType[*refusal](err); ok {
		r.reason = Removed
		return nil, r
	}
	y.Log.Warn("records do not answer", "error", err)
	return time.After(retryRecords), nil
}

// checkAddress returns a refusal if the node's record now has another address: the node has moved, or an operator approved that.
func (y *syncing) checkAddress(n admission.Node) error {
	if !y.isElsewhere(n) {
		return nil
	}
	return &admission.Refusal{Reason: admission.KeyInUse, Text: fmt.Sprintf("node %s is now at %s", n.Name, n.Address)}
}

// sendRoster sends the newest roster if the node has an older one. The channel is closed when there is a newer roster.
func (y *syncing) sendRoster() (<-chan struct{}, error) {
	signed, generation, changed := y.Rosters.Current()
	if len(signed) == 0 || generation <= y.generation {
		return changed, nil
	}
	y.generation = generation
	return changed, y.send(&joinv1.SyncReply{Message: &joinv1.SyncReply_Roster{Roster: signed}})
}

// handle answers a message of the node.
func (y *syncing) handle(ctx context.Context, m *joinv1.SyncRequest) error {
	if m.GetHello() != nil || m.GetMessage() == nil {
		return deny(BadOrder, "a message after its hello is %T", m.GetMessage())
	}
	node, err := y.record(ctx)
	if err != nil {
		return err
	}
	if err := y.checkAddress(node); err != nil {
		return err
	}
	y.setNode(node)
	if member := m.GetMember(); member != nil {
		return y.wantMember(ctx, member.GetStarted())
	}
	return y.renew(ctx, m.GetKeys().GetRequests())
}

// renew signs certificates for new keys, under the rules of a join.
func (y *syncing) renew(ctx context.Context, requests map[string][]byte) error {
	if !y.limits.allowRenewal(y.peer.Key, y.Now()) {
		return tooMuch("more than %d renewals at once, or than one every %s", renewBurst, renewAgainIn)
	}
	ticket, _, err := y.ticket(ctx)
	if err != nil {
		return err
	}
	certificates, err := y.sign(ctx, ticket.Plan, requests)
	if err != nil {
		return err
	}
	return y.send(&joinv1.SyncReply{Message: &joinv1.SyncReply_Certificates{Certificates: &joinv1.Certificates{Certificates: certificates}}})
}

func (y *syncing) send(m *joinv1.SyncReply) error {
	if err := y.stream.Send(m); err != nil {
		return &lost{err}
	}
	return nil
}

// joiningEtcd is how far a control plane has joined etcd, as far as this stream knows.
type joiningEtcd struct {
	answers chan memberAnswer // has room for the one call of Members.Admit that runs at a time
	tick    *time.Ticker      // runs while the node wants to join
	asking  bool
	started bool
	heard   time.Time // when the node last said that it wants to join
	sent    membership.Progress
}

// memberAnswer is the result of Members.Admit.
type memberAnswer struct {
	progress membership.Progress
	err      error
}

// wantMember notes that the node wants to join etcd, and asks Members at once.
func (y *syncing) wantMember(ctx context.Context, started bool) error {
	if !y.ControlPlane(y.node.Pool) {
		return deny(NotControlPlane, "node %s of pool %s is not a control plane", y.node.Name, y.node.Pool)
	}
	m := &y.member
	if m.sent.Promoted {
		return y.send(wirePromoted())
	}
	m.started, m.heard = started, y.Now()
	m.tick.Reset(memberInterval)
	y.askMembers(ctx)
	return nil
}

// askMembers asks in another goroutine: etcd may be slow, and must not delay rosters and removals.
func (y *syncing) askMembers(ctx context.Context) {
	m := &y.member
	if y.Now().Sub(m.heard) > memberSilence {
		m.tick.Stop() // its lease expires
		return
	}
	if m.asking {
		return
	}
	m.asking = true
	node, started := y.node, m.started
	go func() {
		progress, err := y.Members.Admit(ctx, node, started)
		m.answers <- memberAnswer{progress, err}
	}()
}

// sendProgress sends what is new in an answer.
func (y *syncing) sendProgress(a memberAnswer) error {
	m := &y.member
	m.asking = false
	progress := a.progress
	if a.err != nil {
		y.Log.Warn("etcd's membership does not answer", "node", y.node.Name, "error", a.err)
		progress = membership.Progress{Wait: &wait.For{What: "an answer about etcd's members", Who: "etcd of the control planes", Since: y.Now()}}
	}
	old := m.sent
	m.sent = progress
	if len(progress.Permit) == 0 { // an earlier permit stays valid: do not send it again after a wait
		m.sent.Permit, m.sent.Discard = old.Permit, old.Discard
	}
	switch {
	case progress.Promoted:
		m.tick.Stop()
		y.audit(Promoted, "")
		return y.send(wirePromoted())
	case len(progress.Permit) > 0 && (!bytes.Equal(progress.Permit, old.Permit) || progress.Discard != old.Discard):
		y.audit(Permitted, "")
		return y.send(&joinv1.SyncReply{Message: &joinv1.SyncReply_Permit{Permit: &joinv1.Permit{Content: progress.Permit, Discard: progress.Discard}}})
	case progress.Wait != nil && (old.Wait == nil || !old.Wait.Same(*progress.Wait)):
		return y.send(&joinv1.SyncReply{Message: &joinv1.SyncReply_Wait{Wait: wireWait(*progress.Wait)}})
	}
	return nil
}

func wirePromoted() *joinv1.SyncReply {
	return &joinv1.SyncReply{Message: &joinv1.SyncReply_Promoted{Promoted: &joinv1.Promoted{}}}
}

func wireWait(w wait.For) *joinv1.Wait {
	wire := &joinv1.Wait{What: w.What, Who: w.Who}
	if !w.Since.IsZero() {
		wire.SinceUnixNano = w.Since.UnixNano()
	}
	return wire
}

// inbox is what a goroutine reads from a stream. The goroutine is at most one message ahead.
type inbox[M any] struct {
	messages chan M
	end      chan error // receives exactly one error, when the stream ends or soon after the context ends
}

// receive reads until the stream or the context ends.
func receive[M any](ctx context.Context, recv func() (M, error)) inbox[M] {
	in := inbox[M]{messages: make(chan M), end: make(chan error, 1)}
	go func() {
		for {
			m, err := recv()
			if err != nil {
				in.end <- &lost{err}
				return
			}
			select {
			case in.messages <- m:
			case <-ctx.Done():
				in.end <- ctx.Err()
				return
			}
		}
	}()
	return in
}
