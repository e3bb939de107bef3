// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// guarded is a stream that knows the call's time: gRPC's own waits for a peer for ever.
type guarded struct {
	grpc.ServerStream
	ctx   context.Context //nolint:containedctx // a stream hands its context out
	timed bool
	read  *reader
}

// Context ends when the call's time is over.
func (g *guarded) Context() context.Context { return g.ctx }

// RecvMsg returns the call's end, too.
func (g *guarded) RecvMsg(m any) error { return g.read.next(g.ctx, m) }

// SendMsg gives up at the call's end: a peer that reads nothing would hold it.
func (g *guarded) SendMsg(m any) error {
	if !g.timed {
		return g.ServerStream.SendMsg(m)
	}
	return before(g.ctx, func() error { return g.ServerStream.SendMsg(m) })
}

// reader reads the messages of one call, one after the other.
type reader struct {
	timed   bool
	most    int // messages, if timed
	receive func(any) error
	got     int
}

func (r *reader) next(ctx context.Context, m any) error {
	if !r.timed {
		return refusal(r.receive(m))
	}
	if err := before(ctx, func() error { return refusal(r.receive(m)) }); err != nil {
		return err
	}
	if r.got++; r.got > r.most {
		return &Refusal{Code: codes.ResourceExhausted, Reason: fmt.Sprintf("more than %d messages in one call", r.most)}
	}
	return nil
}

// refusal names what gRPC says about a message that it could not take: the peer's fault, not ours. By then gRPC has told the peer
// in its own words and ended the call, so the call's context says nothing; that the peer went away, the code says.
func refusal(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	code := status.Code(err)
	switch code {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable:
		return err
	case codes.Unknown:
		code = codes.InvalidArgument
	}
	return &Refusal{Code: code, Reason: "receive a message: " + status.Convert(err).Message()}
}

// before returns what do returns, or the end of ctx. In the latter case do ends with the call itself, which is about to end.
func before(ctx context.Context, do func() error) error {
	done := make(chan error, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil { // here it would end the agent
				done <- fmt.Errorf("panic: %v", p)
			}
		}()
		done <- do()
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return ctx.Err()
		}
		return <-done // the peer went away, or gRPC ended the call because of what do found: it returns now, and knows better
	}
}
