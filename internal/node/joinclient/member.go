// SPDX-License-Identifier: Apache-2.0

package joinclient

import (
	"bytes"
	"context"
	"time"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
)

// Member is a control plane's way into etcd. The functions are called by Run, one at a time.
type Member struct {
	Started func() bool                              // whether its etcd runs; asked every 50 ms
	Permit  func(content []byte, discard bool) error // lets its etcd start; discard: what an earlier attempt left must be deleted first
	Waiting func(Status)                             // optional: whose turn it is first; the zero Status: nobody's
}

const (
	memberAgain = 2 * time.Second       // the service forgets who is silent for 5 s
	memberLook  = 50 * time.Millisecond // a local question
)

// memberRun is one call of Member.
type memberRun struct {
	Member
	done    chan error // has room for the one answer
	gone    chan struct{}
	ticker  *time.Ticker
	said    time.Time // when it was asked last on the present stream
	started bool      // … and with what
	permit  *joinv1.Permit
}

// Member leads the node's etcd into the cluster: it asks until the node is promoted, over as many streams as that takes. It fails
// when the context ends or a permit cannot be kept; the next call begins anew.
func (s *Sync) Member(ctx context.Context, m Member) error {
	if m.Waiting == nil {
		m.Waiting = func(Status) {}
	}
	r := &memberRun{Member: m, done: make(chan error, 1), gone: make(chan struct{}), ticker: time.NewTicker(memberLook)}
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

// tick is when there is something to look at; never, for a nil run.
func (r *memberRun) tick() <-chan time.Time {
	if r == nil {
		return nil
	}
	return r.ticker.C
}

// left is closed when nobody waits any more; never, for a nil run.
func (r *memberRun) left() <-chan struct{} {
	if r == nil {
		return nil
	}
	return r.gone
}

// askMember says that the node wants in, when that is due or has changed.
func (k *keeper) askMember(l *line) error {
	m := k.member
	started := m.Started()
	if started == m.started && time.Since(m.said) < memberAgain {
		return nil
	}
	m.started, m.said = started, time.Now()
	return l.stream.Send(&joinv1.SyncRequest{Message: &joinv1.SyncRequest_Member{Member: &joinv1.Member{Started: started}}})
}

// permitted hands a permit on, once: a new stream brings the same again.
func (k *keeper) permitted(p *joinv1.Permit) {
	m := k.member
	if m == nil || m.permit != nil && bytes.Equal(m.permit.GetContent(), p.GetContent()) && m.permit.GetDiscard() == p.GetDiscard() {
		return
	}
	m.Waiting(Status{})
	if err := m.Permit(p.GetContent(), p.GetDiscard()); err != nil {
		k.memberDone(err)
		return
	}
	m.permit = p
}

func (k *keeper) memberDone(err error) {
	if k.member != nil {
		k.member.done <- err
		k.member = nil
	}
}

func (k *keeper) memberWaits(w *joinv1.Wait) {
	if k.member != nil {
		k.member.Waiting(Status{For: fromWire(w)})
	}
}
