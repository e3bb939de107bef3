// SPDX-License-Identifier: Apache-2.0

package initclient

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	initv1 "github.com/slipway-project/slipway/api/init/v1"
)

// Watch follows a request to its end and calls each, one at a time, for every event that it has not shown yet. A connection that is
// lost is made again, without end: only ctx, a refusal, or the result ends it. The error is a *FailedError when the machine has
// undone the request.
func (c *Client) Watch(ctx context.Context, id string, each func(Event)) (Result, error) {
	seen := &progress{each: each}
	for try := 0; ; try++ {
		before := seen.count
		result, err := c.watchOnce(ctx, id, seen)
		if err == nil {
			return outcome(id, result)
		}
		if !c.passing(ctx, err) {
			return Result{}, c.explain(ctx, "watch request "+id, err)
		}
		if seen.count > before {
			try = 0
		}
		if err := c.rest(ctx, try, err); err != nil {
			return Result{}, err
		}
	}
}

func (c *Client) watchOnce(ctx context.Context, id string, seen *progress) (*initv1.Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.api.Watch(ctx, &initv1.WatchRequest{Id: id}, c.with())
	if err != nil {
		return nil, err
	}
	for first := true; ; first = false {
		e, err := stream.Recv()
		if errors.Is(err, io.EOF) { // a stream that ends without a result has told us nothing
			return nil, status.Error(codes.Unavailable, "the stream ended without a result")
		}
		if err != nil {
			return nil, err
		}
		seen.show(e, first)
		if e.GetResult() != nil {
			return e.GetResult(), nil
		}
	}
}

func outcome(id string, r *initv1.Result) (Result, error) {
	if r.GetError() != "" {
		return Result{}, &FailedError{ID: id, Why: r.GetError()}
	}
	return Result{Cluster: r.GetCluster(), Kubeconfig: r.GetKubeconfig()}, nil
}

// progress knows which events were shown. Each stream begins with the first event that there was; the same one as before means the
// same row of events, in which times only grow. An agent that was started anew begins a new row.
type progress struct {
	each  func(Event)
	first int64
	last  int64
	count int
}

func (p *progress) show(e *initv1.Event, first bool) {
	at := e.GetUnixNano()
	if first && at != p.first {
		p.first, p.last = at, at-1
	}
	if at <= p.last {
		return
	}
	p.last = at
	p.count++
	if p.each == nil {
		return
	}
	p.each(Event{Time: time.Unix(0, at), Phase: e.GetPhase(), Item: e.GetItem(), ItemPhase: e.GetItemPhase(), Text: e.GetText()})
}
