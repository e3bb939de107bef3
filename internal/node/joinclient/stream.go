// SPDX-License-Identifier: Apache-2.0

package joinclient

import (
	"bytes"
	"context"
	"errors"
	"io"
	"time"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
)

// settleTime is how long a stream without messages must live before the status says that all is well.
const settleTime = 2 * time.Second

// serve exchanges messages on one stream until it ends. Only this goroutine sends.
func (r *syncRun) serve(ctx context.Context, stream SyncStream) error {
	settled := time.After(settleTime)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	inbox, ended := receive(ctx, stream)
	if r.renewal != nil { // the previous stream ended without an answer
		if err := stream.Send(r.renewal.message()); err != nil {
			return endReason(err, ended)
		}
	}
	if r.member != nil {
		r.member.sent = time.Time{}
		if err := r.member.send(stream); err != nil {
			return endReason(err, ended)
		}
	}
	for {
		renewals := r.renewals
		if r.renewal != nil { // one at a time, because answers do not name their request
			renewals = nil
		}
		members := r.members
		var memberTick <-chan time.Time
		var memberCanceled <-chan struct{}
		if r.member != nil {
			members, memberTick, memberCanceled = nil, r.member.ticker.C, r.member.gone
		}
		var err error
		select {
		case <-settled:
			r.status.clear()
		case m := <-inbox:
			r.status.clear()
			err = r.handle(m)
		case err = <-ended:
			return err
		case r.renewal = <-renewals:
			err = stream.Send(r.renewal.message())
		case r.member = <-members:
			err = r.member.send(stream)
		case <-memberCanceled:
			r.member = nil
		case <-memberTick:
			err = r.member.send(stream)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err != nil {
			return endReason(err, ended)
		}
	}
}

// handle handles one message. An error ends the stream.
func (r *syncRun) handle(m *joinv1.SyncReply) error {
	switch m := m.GetMessage().(type) {
	case *joinv1.SyncReply_Roster:
		if err := r.Roster(m.Roster); err != nil {
			r.Log.Warn("roster not stored", "error", err)
		}
		return nil
	case *joinv1.SyncReply_Certificates:
		return r.answerRenewal(m.Certificates.GetCertificates())
	case *joinv1.SyncReply_Permit:
		r.permit(m.Permit)
		return nil
	case *joinv1.SyncReply_Promoted:
		r.answerMember(nil)
		return nil
	case *joinv1.SyncReply_Wait:
		if r.member != nil {
			r.member.Waiting(Status{For: fromWire(m.Wait)})
		}
		return nil
	default:
		return protocolErrorf("unexpected message: %T", m)
	}
}

// receive reads a stream until it ends or ctx does. The end has a channel of its own, so that it can be found after a failed Send
// while a message is still unread.
func receive(ctx context.Context, stream SyncStream) (<-chan *joinv1.SyncReply, <-chan error) {
	inbox, ended := make(chan *joinv1.SyncReply), make(chan error, 1)
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case inbox <- m:
			case <-ctx.Done():
				return
			}
		}
	}()
	return inbox, ended
}

// endReason returns why a Send failed. If the server has ended the stream, gRPC's Send returns only io.EOF; Recv returns the reason.
func endReason(err error, ended <-chan error) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	select {
	case reason := <-ended:
		return reason
	case <-time.After(time.Second): // unread messages precede the reason
		return err
	}
}

// renewal is one request for certificates.
type renewal struct {
	requests map[string][]byte
	answer   chan renewed  // buffered: never blocks
	gone     chan struct{} // closed when the caller no longer waits
}

type renewed struct {
	certificates map[string][]byte
	err          error
}

// Renew requests certificates for new keys: name of the Want → PKCS#10 in DER; the answer is PEM. It waits for a stream and repeats
// the request on a new one if the stream ends. It fails if the request is refused or the context ends. Run must be running.
func (s *Sync) Renew(ctx context.Context, requests map[string][]byte) (map[string][]byte, error) {
	r := &renewal{requests: requests, answer: make(chan renewed, 1), gone: make(chan struct{})}
	defer close(r.gone)
	select {
	case s.renewals <- r:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	select {
	case a := <-r.answer:
		return a.certificates, a.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (r *renewal) message() *joinv1.SyncRequest {
	return &joinv1.SyncRequest{Message: &joinv1.SyncRequest_Keys{Keys: &joinv1.Keys{Requests: r.requests}}}
}

// canceled reports whether the caller no longer waits.
func (r *renewal) canceled() bool {
	select {
	case <-r.gone:
		return true
	default:
		return false
	}
}

func (r *syncRun) answerRenewal(certificates map[string][]byte) error {
	w := r.renewal
	if w == nil {
		return protocolErrorf("unexpected certificates: none were requested")
	}
	r.renewal = nil
	if err := checkKeys(w.requests, certificates); err != nil {
		w.answer <- renewed{err: err}
		return err
	}
	w.answer <- renewed{certificates: certificates}
	return nil
}

// Member is how a control plane's etcd becomes a voting member. Run calls the functions, one at a time.
type Member struct {
	Started func() bool                              // whether the node's etcd is running; called every 50 ms
	Permit  func(content []byte, discard bool) error // allows etcd to start; discard: first delete the data of an earlier attempt
	Waiting func(Status)                             // optional: what the node waits for before it gets a permit; the zero Status when it has one
}

const (
	memberResend = 2 * time.Second       // the service forgets a node that is silent for 10 s
	memberPoll   = 50 * time.Millisecond // a local call
)

// memberRequest is one call of Member.
type memberRequest struct {
	Member
	done    chan error    // buffered: never blocks
	gone    chan struct{} // closed when the caller no longer waits
	ticker  *time.Ticker
	sent    time.Time // when the request was last sent on the current stream
	started bool      // what it said
	permit  *joinv1.Permit
}

// Member asks for etcd membership until the node is promoted, over as many streams as necessary. It fails if the context ends or if
// m.Permit fails; the next call starts from scratch. Run must be running.
func (s *Sync) Member(ctx context.Context, m Member) error {
	if m.Waiting == nil {
		m.Waiting = func(Status) {}
	}
	r := &memberRequest{Member: m, done: make(chan error, 1), gone: make(chan struct{}), ticker: time.NewTicker(memberPoll)}
	defer r.ticker.Stop()
	defer close(r.gone)
	select {
	case s.members <- r:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// send sends the request if its content has changed or memberResend has passed.
func (m *memberRequest) send(stream SyncStream) error {
	started := m.Started()
	if started == m.started && time.Since(m.sent) < memberResend {
		return nil
	}
	m.started, m.sent = started, time.Now()
	return stream.Send(&joinv1.SyncRequest{Message: &joinv1.SyncRequest_Member{Member: &joinv1.Member{Started: started}}})
}

// permit passes a permit to the caller of Member, but only once: a new stream brings the same permit again.
func (r *syncRun) permit(p *joinv1.Permit) {
	m := r.member
	if m == nil || m.permit != nil && bytes.Equal(m.permit.GetContent(), p.GetContent()) && m.permit.GetDiscard() == p.GetDiscard() {
		return
	}
	m.Waiting(Status{})
	if err := m.Permit(p.GetContent(), p.GetDiscard()); err != nil {
		r.answerMember(err)
		return
	}
	m.permit = p
}

func (r *syncRun) answerMember(err error) {
	if r.member != nil {
		r.member.done <- err
		r.member = nil
	}
}
