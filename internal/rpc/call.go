// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime/debug"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
)

type unaryHandler = func(srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error)

// guardUnary asks the rule before the message is read, so that a refused client cannot make the server allocate memory for it.
func (s *Server) guardUnary(method string, h unaryHandler) unaryHandler {
	return func(srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (reply any, err error) {
		err = s.call(ctx, method, func(ctx context.Context, timed bool) (err error) {
			r := &receiver{timed: timed, limit: 1, receive: decode}
			reply, err = h(srv, ctx, func(m any) error { return r.next(ctx, m) }, nil)
			return err
		})
		if err != nil {
			return nil, err
		}
		return reply, nil
	}
}

// guardStream asks the rule before the handler of a stream runs, and enforces the limits of the call on its
// messages.
func (s *Server) guardStream(method string, h grpc.StreamHandler) grpc.StreamHandler {
	return func(srv any, ss grpc.ServerStream) error {
		return s.call(ss.Context(), method, func(ctx context.Context, timed bool) error {
			r := &receiver{timed: timed, limit: s.options.Limits.Messages, receive: ss.RecvMsg}
			return h(srv, &guardedStream{ServerStream: ss, ctx: ctx, timed: timed, receiver: r})
		})
	}
}

// unknown handles methods that no service has registered.
func (s *Server) unknown(_ any, ss grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(ss)
	return s.call(ss.Context(), method, func(context.Context, bool) error {
		return &Refusal{Code: codes.Unimplemented, Reason: "the method is not served"}
	})
}

// tap audits malformed method names, which gRPC refuses before any handler runs. It never refuses a call itself: gRPC would leak
// the timer of a call that ends here.
func (s *Server) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	if name, ok := strings.CutPrefix(info.FullMethodName, "/"); ok && strings.Contains(name, "/") {
		return ctx, nil
	}
	if caller, err := authInfoFrom(ctx); err == nil {
		s.report(caller.conn.source, Refused{Peer: caller.peer, Method: abbreviate(info.FullMethodName), Code: codes.Unimplemented, Reason: "malformed method name"})
	}
	return ctx, nil
}

// call runs one call: it checks the call rate and the rule, enforces the timeout, recovers from panics, and decides what the
// client learns of an error.
func (s *Server) call(ctx context.Context, method string, run func(ctx context.Context, timed bool) error) error {
	caller, err := authInfoFrom(ctx)
	if err != nil {
		return status.Error(codes.Internal, "refused")
	}
	defer caller.conn.endCall()
	if err := caller.conn.beginCall(); err != nil {
		return s.reply(ctx, caller, method, &Refusal{Code: codes.ResourceExhausted, Reason: err.Error()})
	}
	limit, ok := s.options.Timeout[method]
	if !ok {
		limit = s.options.Limits.Call
	}
	timed, inner := limit != NoTimeout, ctx
	if timed {
		var cancel context.CancelFunc
		inner, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	err = s.recovered(method, func() error {
		rule := s.options.Authorize[method]
		if rule == nil {
			return &Refusal{Code: codes.PermissionDenied, Reason: "the method has no authorization rule"}
		}
		if err := s.authorize(inner, rule, caller.peer); err != nil {
			return err
		}
		if !timed {
			caller.conn.markKnown()
		}
		return run(inner, timed)
	})
	if err != nil && timed && ctx.Err() == nil && errors.Is(inner.Err(), context.DeadlineExceeded) {
		err = &Refusal{Code: codes.DeadlineExceeded, Reason: fmt.Sprintf("not finished within %s: %v", limit, err)}
	}
	return s.reply(ctx, caller, method, err)
}

// authorize asks the rule. The rule is always limited to Limits.Call, even if the call has no timeout: its peer is not known yet.
func (s *Server) authorize(ctx context.Context, rule func(context.Context, Peer) error, p Peer) error {
	limit := s.options.Limits.Call
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := rule(limited, p)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return &Refusal{Code: codes.Unavailable, Reason: fmt.Sprintf("the rule did not decide within %s: %v", limit, err)}
	}
	return err
}

// recovered turns a panic into an error, so that one bad request does not end the agent.
func (s *Server) recovered(method string, run func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.panics.Add(1)
			s.log.Error("call panicked", "method", abbreviate(method), "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return run()
}

// reply reports the full reason to the audit and returns what the client is told.
func (s *Server) reply(ctx context.Context, caller authInfo, method string, err error) error {
	var refusal *Refusal
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refusal):
	case ctx.Err() != nil: // the client has gone or its own deadline has passed: this is not a refusal
		return status.FromContextError(ctx.Err()).Err()
	default:
		refusal = &Refusal{Code: codes.Internal, Public: "internal error"}
	}
	public := refusal.GRPCStatus().Proto()
	code := codes.Code(public.GetCode())
	id := s.report(caller.conn.source, Refused{ID: refusal.ID, Peer: caller.peer, Method: abbreviate(method), Code: code, Reason: err.Error()})
	public.Message += " (id " + id + ")"
	return status.ErrorProto(public)
}

// report audits a refusal and returns its id. It sets the time and, if missing, the id.
func (s *Server) report(source netip.Addr, r Refused) (id string) {
	r.At = time.Now()
	if r.ID == "" {
		r.ID = newID()
	}
	s.audit.refused(source, r)
	return r.ID
}

// abbreviate shortens a method name that a client has chosen to the size of a log line.
func abbreviate(method string) string {
	const limit = 128
	if len(method) > limit {
		return fmt.Sprintf("%q… (%d bytes)", method[:limit], len(method))
	}
	return method
}

// guardedStream enforces the timeout of the call: gRPC's own streams wait for the peer without limit.
type guardedStream struct {
	grpc.ServerStream
	ctx      context.Context //nolint:containedctx // a stream hands out its context
	timed    bool
	receiver *receiver
}

// Context ends when the call's time is over.
func (g *guardedStream) Context() context.Context { return g.ctx }

// RecvMsg also returns when the call's time is over.
func (g *guardedStream) RecvMsg(m any) error { return g.receiver.next(g.ctx, m) }

// SendMsg also returns when the call's time is over: a peer that does not read would block it.
func (g *guardedStream) SendMsg(m any) error {
	if !g.timed {
		return g.ServerStream.SendMsg(m)
	}
	return runUntil(g.ctx, func() error { return g.ServerStream.SendMsg(m) })
}

// receiver reads the messages of one call, one at a time.
type receiver struct {
	timed    bool
	limit    int // number of messages, if timed
	receive  func(any) error
	received int
}

func (r *receiver) next(ctx context.Context, m any) error {
	if !r.timed {
		return asRefusal(r.receive(m))
	}
	if err := runUntil(ctx, func() error { return asRefusal(r.receive(m)) }); err != nil {
		return err
	}
	if r.received++; r.received > r.limit {
		return &Refusal{Code: codes.ResourceExhausted, Reason: fmt.Sprintf("more than %d messages in one call", r.limit)}
	}
	return nil
}

// asRefusal turns gRPC's error about a message that it could not receive into a refusal, because it is the peer's fault. By then
// gRPC has already answered the peer and ended the call, so the call's context tells nothing; the code tells if the peer has gone.
func asRefusal(err error) error {
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

// runUntil returns the result of do, or the error of ctx when its deadline passes first. In that case do returns soon after,
// because the call ends with its context.
func runUntil(ctx context.Context, do func() error) error {
	done := make(chan error, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil { // in this goroutine a panic would end the agent
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
		return <-done // the call was cancelled, so do returns now; its error says why
	}
}
