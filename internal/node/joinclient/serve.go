// SPDX-License-Identifier: Apache-2.0

package joinclient

import (
	"context"
	"errors"
	"io"
	"time"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
)

// settle is how long a stream lives that was not refused at once: before, nothing is said to be well.
const settle = 2 * time.Second

// serve speaks on one stream until it ends. Only this goroutine sends.
func (k *keeper) serve(ctx context.Context, l *line) error {
	settled := time.After(settle)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	inbox, broken := receive(ctx, l.stream)
	if err := k.again(l); err != nil {
		return reason(err, broken)
	}
	for {
		var renewals chan *renewal
		if k.asked == nil { // one after the other: answers carry no name
			renewals = k.renewals
		}
		var members chan *memberRun
		if k.member == nil {
			members = k.members
		}
		var err error
		select {
		case <-settled:
			k.says.nothing()
		case m := <-inbox:
			k.says.nothing()
			err = k.take(m)
		case err = <-broken:
			return err
		case r := <-renewals:
			k.asked = r
			err = l.stream.Send(r.message())
		case m := <-members:
			k.member = m
			err = k.askMember(l)
		case <-k.member.left():
			k.member = nil
		case <-k.member.tick():
			err = k.askMember(l)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err != nil {
			return reason(err, broken)
		}
	}
}

// again asks on a new stream what the old one has not answered.
func (k *keeper) again(l *line) error {
	if k.asked != nil {
		if err := l.stream.Send(k.asked.message()); err != nil {
			return err
		}
	}
	if k.member == nil {
		return nil
	}
	k.member.said = time.Time{}
	return k.askMember(l)
}

func (k *keeper) take(m *joinv1.SyncReply) error {
	switch m := m.GetMessage().(type) {
	case *joinv1.SyncReply_Roster:
		if err := k.Roster(m.Roster); err != nil {
			k.Log.Warn("roster not taken", "error", err)
		}
		return nil
	case *joinv1.SyncReply_Certificates:
		return k.renewed(m.Certificates.GetCertificates())
	case *joinv1.SyncReply_Permit:
		k.permitted(m.Permit)
		return nil
	case *joinv1.SyncReply_Promoted:
		k.memberDone(nil)
		return nil
	case *joinv1.SyncReply_Wait:
		k.memberWaits(m.Wait)
		return nil
	default:
		return odd("it sends %T", m)
	}
}

// receive reads a stream beside its owner. The two channels are apart, so that the end is found behind a failed Send, too.
func receive(ctx context.Context, stream SyncStream) (<-chan *joinv1.SyncReply, <-chan error) {
	inbox, broken := make(chan *joinv1.SyncReply), make(chan error, 1)
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				broken <- err
				return
			}
			select {
			case inbox <- m:
			case <-ctx.Done():
				return
			}
		}
	}()
	return inbox, broken
}

// reason is why a Send failed: gRPC says "EOF" there, and the reason to who receives.
func reason(err error, broken <-chan error) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	select {
	case why := <-broken:
		return why
	case <-time.After(time.Second): // messages are in front of it that nobody will read
		return err
	}
}
