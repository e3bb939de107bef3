// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/control/joinserver"
	"github.com/slipway-project/slipway/internal/node/joinclient"
	"github.com/slipway-project/slipway/internal/rpc"
)

// conn implements joinclient.Conn and joinserver.Channel over a link.
type conn struct{ *link }

var _ joinserver.Channel = conn{}

func (c conn) Close() error {
	c.end(errLink)
	return nil
}

// Peer implements joinserver.Channel.
func (c conn) Peer() rpc.Peer {
	return rpc.Peer{Addr: netip.AddrPortFrom(c.from.m.address, c.port), Key: c.from.pin, Public: c.from.key.Public()}
}

// Exporter implements joinserver.Channel, and the same method of the joining side.
func (c conn) Exporter() ([]byte, error) { return c.exporter, nil }

// stream is one end of a call: messages in both directions.
type stream[Q, A proto.Message] struct {
	conn
	ctx  context.Context //nolint:containedctx // as gRPC's streams have it
	up   *pipe[Q]
	down *pipe[A]
}

// call starts a stream and its handler.
func call[Q, A proto.Message](ctx context.Context, c conn, limit time.Duration, handle func(context.Context, *stream[Q, A]) error) *stream[Q, A] {
	serving, cancel := context.WithCancel(c.to.ctx)
	if limit > 0 {
		serving, cancel = context.WithTimeout(c.to.ctx, limit)
	}
	s := &stream[Q, A]{conn: c, ctx: ctx}
	s.up = newPipe[Q](c.link, serving.Done())
	s.down = newPipe[A](c.link, ctx.Done())
	stop := context.AfterFunc(ctx, cancel)
	go func() {
		select {
		case <-c.broken:
			cancel()
		case <-serving.Done():
		}
	}()
	go func() {
		defer cancel()
		defer stop()
		err := handle(serving, &stream[Q, A]{conn: c, ctx: serving, up: s.up, down: s.down})
		if err == nil {
			err = io.EOF
		} else {
			err = status.Convert(err).Err()
		}
		s.down.finish(err)
	}()
	return s
}

// Join implements joinclient.Conn.
func (c conn) Join(ctx context.Context) (joinclient.JoinStream, error) {
	s := call(ctx, c, 30*time.Second, func(ctx context.Context, s *stream[*joinv1.JoinRequest, *joinv1.JoinReply]) error {
		return c.service.server.Join(ctx, c, serverSide[*joinv1.JoinRequest, *joinv1.JoinReply]{s})
	})
	return joinSide{clientSide[*joinv1.JoinRequest, *joinv1.JoinReply]{s}}, nil
}

// Sync implements joinclient.Conn.
func (c conn) Sync(ctx context.Context) (joinclient.SyncStream, error) {
	s := call(ctx, c, 0, func(ctx context.Context, s *stream[*joinv1.SyncRequest, *joinv1.SyncReply]) error {
		return c.service.server.Sync(ctx, c, serverSide[*joinv1.SyncRequest, *joinv1.SyncReply]{s})
	})
	return clientSide[*joinv1.SyncRequest, *joinv1.SyncReply]{s}, nil
}

// clientSide is the machine's end.
type clientSide[Q, A proto.Message] struct{ *stream[Q, A] }

type joinSide struct {
	clientSide[*joinv1.JoinRequest, *joinv1.JoinReply]
}

func (s clientSide[Q, A]) Send(m Q) error {
	s.from.pass("send " + kind(m))
	if err := s.from.alive(); err != nil {
		return err
	}
	return s.up.send(proto.Clone(m).(Q))
}

func (s clientSide[Q, A]) Recv() (A, error) {
	m, err := s.down.recv(s.ctx)
	if err == nil {
		s.from.pass("got " + kind(m))
		err = s.from.alive()
	}
	return m, err
}

func (s joinSide) CloseSend() error {
	s.up.finish(io.EOF)
	return nil
}

// serverSide is the join service's end.
type serverSide[Q, A proto.Message] struct{ *stream[Q, A] }

func (s serverSide[Q, A]) Send(m A) error {
	s.to.pass("answer " + kind(m))
	if err := s.to.alive(); err != nil {
		return err
	}
	err := s.down.send(proto.Clone(m).(A))
	s.to.pass("answered " + kind(m))
	return err
}

func (s serverSide[Q, A]) Recv() (Q, error) {
	m, err := s.up.recv(s.ctx)
	if err == nil {
		s.to.pass("heard " + kind(m))
		err = s.to.alive()
	}
	return m, err
}

// kind names the content of a message: "hello", "grant".
func kind(m proto.Message) string {
	r := m.ProtoReflect()
	if one := r.WhichOneof(r.Descriptor().Oneofs().Get(0)); one != nil {
		return string(one.Name())
	}
	return strings.ToLower(fmt.Sprint(r.Descriptor().Name()))
}
