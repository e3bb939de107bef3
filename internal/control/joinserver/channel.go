// SPDX-License-Identifier: Apache-2.0

package joinserver

import (
	"context"
	"time"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/rpc"
)

// Channel is the connection below a stream: who is at its other end, and the secret that only its two ends share.
type Channel interface {
	Peer() rpc.Peer
	Exporter() ([]byte, error)
}

// JoinStream is the machine's stream. Recv ends with an error when the stream ends, and at the latest soon after Join has returned.
type JoinStream interface {
	Send(*joinv1.JoinReply) error
	Recv() (*joinv1.JoinRequest, error)
}

// SyncStream is a node's stream, under the same promise.
type SyncStream interface {
	Send(*joinv1.SyncReply) error
	Recv() (*joinv1.SyncRequest, error)
}

// Service is the server as gRPC knows it, for a server made by package rpc.
func (s *Server) Service() joinv1.JoinServer { return service{server: s} }

// Rules say who may call what, for rpc.ServerOptions. A stranger may join; only machines with a record may stay in touch, and their
// connections are not counted as strangers'.
func (s *Server) Rules() map[string]func(context.Context, rpc.Peer) error {
	return map[string]func(context.Context, rpc.Peer) error{
		joinv1.Join_Join_FullMethodName:  func(context.Context, rpc.Peer) error { return nil },
		joinv1.Join_Clock_FullMethodName: func(context.Context, rpc.Peer) error { return nil },
		joinv1.Join_Sync_FullMethodName: func(ctx context.Context, peer rpc.Peer) error {
			e, err := s.begin(tlsChannel{peer: peer}, "sync")
			if err == nil {
				_, err = e.record(ctx)
			}
			return e.end(err)
		},
	}
}

// Timeouts of the two calls, for rpc.ServerOptions: a join is over soon, a node stays.
func Timeouts() map[string]time.Duration {
	return map[string]time.Duration{joinv1.Join_Join_FullMethodName: 30 * time.Second, joinv1.Join_Sync_FullMethodName: rpc.NoTimeout}
}

type service struct {
	joinv1.UnimplementedJoinServer
	server *Server
}

func (g service) Join(stream joinv1.Join_JoinServer) error {
	ch, err := channelOf(stream.Context())
	if err != nil {
		return err
	}
	return g.server.Join(stream.Context(), ch, stream)
}

func (g service) Sync(stream joinv1.Join_SyncServer) error {
	ch, err := channelOf(stream.Context())
	if err != nil {
		return err
	}
	return g.server.Sync(stream.Context(), ch, stream)
}

// Clock says what time it is here. It asks nobody, and answers whoever may connect.
func (g service) Clock(context.Context, *joinv1.ClockRequest) (*joinv1.ClockReply, error) {
	return &joinv1.ClockReply{UnixNano: g.server.Now().UnixNano()}, nil
}

// tlsChannel is a Channel over package rpc.
type tlsChannel struct {
	peer     rpc.Peer
	exporter func() ([]byte, error)
}

func (c tlsChannel) Peer() rpc.Peer            { return c.peer }
func (c tlsChannel) Exporter() ([]byte, error) { return c.exporter() }

func channelOf(ctx context.Context) (Channel, error) {
	peer, err := rpc.PeerFrom(ctx)
	if err != nil {
		return nil, err
	}
	return tlsChannel{peer: peer, exporter: func() ([]byte, error) { return rpc.Exporter(ctx) }}, nil
}
