// SPDX-License-Identifier: Apache-2.0

package joinserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/core/admission"
)

// helloTime is how long a node's stream may be silent at first; its call has no limit of time.
const helloTime = 10 * time.Second

// Sync keeps one node in touch for as long as it and its record live: each new roster, certificates for new keys, and a control
// plane's way into etcd. What it returns is fit for the peer.
func (s *Server) Sync(ctx context.Context, ch Channel, stream SyncStream) error {
	e, err := s.begin(ch, "sync")
	if err == nil {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		err = (&syncing{session: e, stream: stream}).run(ctx)
	}
	return e.end(err)
}

// syncing is one node's stream. Only run sends, so that nothing overtakes anything.
type syncing struct {
	*session
	stream     SyncStream
	generation uint64 // of the roster that the node has
	member     joiningEtcd
}

func (y *syncing) run(ctx context.Context) error {
	node, err := y.record(ctx) // a stranger's silence is not waited for
	if err != nil {
		return err
	}
	if !y.budgets.begin(node.Key) {
		y.recorded(node)
		return tooMuch("node %s has %d streams", node.Name, maxStreams)
	}
	defer y.budgets.end(node.Key)
	in := receive(ctx, y.stream.Recv)
	if err := y.greet(ctx, in, node); err != nil {
		return err
	}
	y.budgets.stay(node.Key, y.from())
	defer y.budgets.leave(node.Key, y.from())
	tick := time.NewTicker(memberInterval)
	defer tick.Stop()
	tick.Stop()
	y.member = joiningEtcd{answers: make(chan memberReport, 1), tick: tick}
	for {
		records := y.standing.next()
		again, err := y.stands(ctx)
		if err != nil {
			return err
		}
		rosters, err := y.roster()
		if err != nil {
			return err
		}
		select {
		case m := <-in.messages:
			err = y.take(ctx, m)
		case err = <-in.end: // also the context's end, but with the reason for it
		case <-tick.C:
			y.askMembers(ctx)
		case r := <-y.member.answers:
			err = y.tellMember(r)
		case <-records:
		case <-again:
		case <-rosters:
		}
		if err != nil {
			return err
		}
	}
}

// greet compares the hello with the record that the key has.
func (y *syncing) greet(ctx context.Context, in inbox[*joinv1.SyncRequest], node admission.Node) error {
	var m *joinv1.SyncRequest
	select {
	case m = <-in.messages:
	case err := <-in.end:
		return err
	case <-time.After(helloTime):
		return deny(Late, "no hello within %s", helloTime)
	}
	hello := m.GetHello()
	if hello == nil {
		return deny(BadOrder, "its first message is %T, not a hello", m.GetMessage())
	}
	y.claim(hello.GetNode())
	switch {
	case len(hello.GetNode()) > maxName, len(hello.GetCluster()) > maxID, len(hello.GetSlipway()) > maxVersion, !plain(hello.GetSlipway()):
		return deny(Malformed, "its hello has a field that is too long or unreadable")
	case hello.GetCluster() != y.Cluster:
		return deny(BadCluster, "it is of cluster %.64q, this is %s", hello.GetCluster(), y.Cluster)
	}
	if node.Name != hello.GetNode() {
		return deny(OtherNode, "it says %q and its key is of node %s", hello.GetNode(), node.Name)
	}
	y.recorded(node)
	placed, err := y.place(ctx, node)
	if err != nil {
		return err
	}
	y.recorded(placed)
	y.generation = hello.GetGeneration()
	y.audit(Synced, fmt.Sprintf("slipway %s, roster %d", hello.GetSlipway(), y.generation))
	return nil
}

// stands ends the stream of a node that is not in the list any more, or is elsewhere, once the record itself says so: the list may be older than
// a record that has just been made. If nobody can say, the result is when to ask again.
func (y *syncing) stands(ctx context.Context) (again <-chan time.Time, err error) {
	listed, found, _ := y.standing.find(y.peer.Key)
	if !y.standing.gone(y.peer.Key) && (!found || !y.isElsewhere(listed)) {
		return nil, nil
	}
	node, err := y.record(ctx)
	if err == nil {
		return nil, y.elsewhereNow(node)
	}
	if no, ok := errors.AsType[*refusal](err); ok {
		no.reason = Removed
		return nil, no
	}
	y.Log.Warn("records do not answer", "error", err)
	return time.After(retryRecords), nil
}

// roster sends the newest one, if the node has an older, and gives what is closed when there is a newer.
func (y *syncing) roster() (<-chan struct{}, error) {
	signed, generation, changed := y.Rosters.Current()
	if len(signed) == 0 || generation <= y.generation {
		return changed, nil
	}
	y.generation = generation
	return changed, y.send(&joinv1.SyncReply{Message: &joinv1.SyncReply_Roster{Roster: signed}})
}

// take answers a message of the node.
func (y *syncing) take(ctx context.Context, m *joinv1.SyncRequest) error {
	if m.GetHello() != nil || m.GetMessage() == nil {
		return deny(BadOrder, "after its hello it sends %T", m.GetMessage())
	}
	node, err := y.record(ctx)
	if err != nil {
		return err
	}
	if err := y.elsewhereNow(node); err != nil {
		return err
	}
	y.recorded(node)
	if member := m.GetMember(); member != nil {
		return y.wantMember(ctx, member.GetStarted())
	}
	return y.renew(ctx, m.GetKeys().GetRequests())
}

// renew signs for new keys under the rules of a join.
func (y *syncing) renew(ctx context.Context, requests map[string][]byte) error {
	if !y.budgets.renew(y.peer.Key, y.Now()) {
		return tooMuch("more than %d renewals, and one in %s", renewBurst, renewAgainIn)
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
