// SPDX-License-Identifier: Apache-2.0

package initserver

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	initv1 "github.com/slipway-project/slipway/api/init/v1"
	"github.com/slipway-project/slipway/internal/node/lock"
)

// service translates between the wire and the server. Whoever gets here has shown the secret.
type service struct {
	initv1.UnimplementedInitServer
	*Server
	ending <-chan struct{} // closed when the server ends: streams must not hold it up
}

func (s service) Facts(context.Context, *initv1.FactsRequest) (*initv1.FactsReply, error) {
	return &initv1.FactsReply{Slipway: s.cfg.Slipway, Facts: s.cfg.Machine.Facts().Encode(), Lock: s.cfg.Lock.State().String()}, nil
}

func (s service) Init(_ context.Context, req *initv1.InitRequest) (*initv1.InitReply, error) {
	phase, err := s.begin(req.GetId(), req.GetTicket())
	if err != nil {
		return nil, err
	}
	return &initv1.InitReply{Phase: phase}, nil
}

// Done ends the service of a committed request; another id, or a request that is not there yet, changes nothing.
func (s service) Done(_ context.Context, req *initv1.DoneRequest) (*initv1.DoneReply, error) {
	s.mu.Lock()
	r := s.req
	s.mu.Unlock()
	if r == nil || r.id != req.GetId() || s.cfg.Lock.State().Phase != lock.Committed {
		return nil, refuse(codes.FailedPrecondition, "request %s is not done here", short(req.GetId()))
	}
	s.thanks.Do(func() { close(s.thanked) })
	return &initv1.DoneReply{}, nil
}

func (s service) Watch(req *initv1.WatchRequest, stream grpc.ServerStreamingServer[initv1.Event]) error {
	s.mu.Lock()
	r := s.req
	s.mu.Unlock()
	if r == nil || r.id != req.GetId() {
		return refuse(codes.NotFound, "this machine knows no request %s; it is %s", short(req.GetId()), s.cfg.Lock.State())
	}
	for n := 0; ; {
		events, next, over, changed := r.feed.after(n)
		for _, e := range events {
			if err := stream.Send(wire(e)); err != nil {
				return err
			}
		}
		if over {
			return nil
		}
		if n = next; len(events) > 0 {
			continue
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-s.ending:
			return s.goodbye()
		}
	}
}

// goodbye tells a watcher whether it is worth while to come back.
func (s service) goodbye() error {
	if state := s.cfg.Lock.State(); state.By == lock.Join {
		return refuse(codes.FailedPrecondition, "this machine is %s", state)
	}
	return refuse(codes.Unavailable, "the agent ends: ask again")
}

func wire(e Event) *initv1.Event {
	out := &initv1.Event{UnixNano: e.Time.UnixNano(), Phase: e.Phase, Item: e.Item, ItemPhase: e.ItemPhase, Text: e.Text}
	if e.outcome != nil {
		out.Result = &initv1.Result{Cluster: e.outcome.Result.Cluster, Kubeconfig: e.outcome.Result.Kubeconfig, Error: e.outcome.Why}
	}
	return out
}
