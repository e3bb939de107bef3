// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
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

// guardUnary asks the rule before the message is read: whoever may not call does not fill our memory.
func (s *Server) guardUnary(method string, h unaryHandler) unaryHandler {
	return func(srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (reply any, err error) {
		err = s.call(ctx, method, func(ctx context.Context, timed bool) (err error) {
			read := &reader{timed: timed, most: 1, receive: decode}
			reply, err = h(srv, ctx, func(m any) error { return read.next(ctx, m) }, nil)
			return err
		})
		if err != nil {
			return nil, err
		}
		return reply, nil
	}
}

func (s *Server) guardStream(method string, h grpc.StreamHandler) grpc.StreamHandler {
	return func(srv any, ss grpc.ServerStream) error {
		return s.call(ss.Context(), method, func(ctx context.Context, timed bool) error {
			read := &reader{timed: timed, most: s.options.Limits.Messages, receive: ss.RecvMsg}
			return h(srv, &guarded{ServerStream: ss, ctx: ctx, timed: timed, read: read})
		})
	}
}

// unknown is asked for methods that nobody has registered.
func (s *Server) unknown(_ any, ss grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(ss)
	return s.call(ss.Context(), method, func(context.Context, bool) error {
		return &Refusal{Code: codes.Unimplemented, Reason: "the method is not served"}
	})
}

// tap hears of names that gRPC itself refuses, without asking anybody, because they are no methods. It refuses nothing: a call
// that ends here would leave its timer behind.
func (s *Server) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	if name, ok := strings.CutPrefix(info.FullMethodName, "/"); ok && strings.Contains(name, "/") {
		return ctx, nil
	}
	if who, err := serverSide(ctx); err == nil {
		s.report(who.conn.from, Refused{Peer: who.peer, Method: shown(info.FullMethodName), Code: codes.Unimplemented, Reason: "that is no method's name"})
	}
	return ctx, nil
}

// call runs one call: rate, rule, time, panic, and what the peer learns of a failure.
func (s *Server) call(ctx context.Context, method string, run func(ctx context.Context, timed bool) error) error {
	who, err := serverSide(ctx)
	if err != nil {
		return status.Error(codes.Internal, "refused")
	}
	defer who.conn.end()
	if err := who.conn.begin(); err != nil {
		return s.answer(ctx, who, method, &Refusal{Code: codes.ResourceExhausted, Reason: err.Error()})
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
			return &Refusal{Code: codes.PermissionDenied, Reason: "no rule lets anybody call the method"}
		}
		if err := s.ruled(inner, rule, who.peer); err != nil {
			return err
		}
		if !timed {
			who.conn.know()
		}
		return run(inner, timed)
	})
	if err != nil && timed && ctx.Err() == nil && errors.Is(inner.Err(), context.DeadlineExceeded) {
		err = &Refusal{Code: codes.DeadlineExceeded, Reason: fmt.Sprintf("not finished within %s: %v", limit, err)}
	}
	return s.answer(ctx, who, method, err)
}

// ruled asks the rule, which has no more time than a call, even where the call itself has all the time: its peer is a stranger yet.
func (s *Server) ruled(ctx context.Context, rule func(context.Context, Peer) error, p Peer) error {
	limit := s.options.Limits.Call
	asked, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := rule(asked, p)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return &Refusal{Code: codes.Unavailable, Reason: fmt.Sprintf("not decided within %s: %v", limit, err)}
	}
	return err
}

// recovered turns a panic into an error: one bad request must not end the agent.
func (s *Server) recovered(method string, run func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.panics.Add(1)
			s.log.Error("a call panicked", "method", shown(method), "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return run()
}

// answer tells the audit why and the peer only that.
func (s *Server) answer(ctx context.Context, who authInfo, method string, err error) error {
	var no *Refusal
	switch {
	case err == nil:
		return nil
	case errors.As(err, &no):
	case ctx.Err() != nil: // the peer has gone or its own time is over: nobody was refused
		return status.FromContextError(ctx.Err()).Err()
	default:
		no = &Refusal{Code: codes.Internal, Public: "internal error"}
	}
	public := no.GRPCStatus()
	id := s.report(who.conn.from, Refused{ID: no.ID, Peer: who.peer, Method: shown(method), Code: public.Code(), Reason: err.Error()})
	return status.Errorf(public.Code(), "%s (id %s)", public.Message(), id)
}

func (s *Server) report(from netip.Addr, r Refused) (id string) {
	r.At = time.Now()
	if r.ID == "" {
		r.ID = newID()
	}
	s.audit.refused(from, r)
	return r.ID
}

// shown cuts what a stranger has chosen to the size of a log line.
func shown(method string) string {
	const most = 128
	if len(method) > most {
		return fmt.Sprintf("%q… (%d bytes)", method[:most], len(method))
	}
	return method
}
