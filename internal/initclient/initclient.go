// SPDX-License-Identifier: Apache-2.0

// Package initclient is the operator's side of init: it asks a machine that belongs to nobody what it is, hands it a ticket, and
// follows what becomes of it through lost connections and restarts of the agent.
//
// It never sends the secret to a machine whose key is not the pinned one, never makes a second request of one, and never takes a
// lost connection for an answer. Read [Client] and [Result] first.
//
//	c, err := initclient.Dial(ctx, "192.0.2.10:9440", "sha256:…", secret, nil)
//	phase, err := c.Init(ctx, id, ticket)        // the same id again is the same request
//	result, err := c.Watch(ctx, id, show)        // blocks until the cluster stands; a *FailedError if it does not
package initclient

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	initv1 "github.com/slipway-project/slipway/api/init/v1"
	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/rpc"
	"github.com/slipway-project/slipway/internal/sleep"
)

// Machine is what a machine says of itself.
type Machine struct {
	Slipway string // version of its agent
	Lock    string // for people: "free", "claimed (init r1)"
	Facts   machine.Facts
}

// Event is one line of how a request gets on.
type Event struct {
	Time      time.Time
	Phase     string // where the request has come: "claimed", "installed", "committed", "failed"; else empty
	Item      string // an item of the plan …
	ItemPhase string // … and where it stands
	Text      string // a line of log, or the reason of waiting
}

// Result is the cluster that has come to be.
type Result struct {
	Cluster    string
	Kubeconfig []byte // the administrator's: a secret
}

// FailedError says that the machine has undone the request. It is free again; another try takes a new id.
type FailedError struct {
	ID, Why string
}

func (e *FailedError) Error() string {
	return fmt.Sprintf("init request %s failed, and the machine is free again: %s", e.ID, e.Why)
}

// Client speaks to one machine. It is safe for concurrent use.
type Client struct {
	conn    *grpc.ClientConn
	api     initv1.InitClient
	address string
	secret  bearer
}

// Close ends all calls.
func (c *Client) Close() error { return c.conn.Close() }

func (c *Client) with() grpc.CallOption { return grpc.PerRPCCredentials(c.secret) }

// startLimit is for a machine that has just been given its init secret: it takes a moment until it listens.
const startLimit = 5 * time.Second

// Facts asks the machine what it is.
func (c *Client) Facts(ctx context.Context) (Machine, error) {
	f, err := c.api.Facts(ctx, &initv1.FactsRequest{}, c.with())
	for try, begun := 0, time.Now(); err != nil; try++ {
		if !c.passing(ctx, err) || time.Since(begun) > startLimit {
			return Machine{}, c.explain(ctx, "ask for its facts", err)
		}
		if err := c.rest(ctx, try, err); err != nil {
			return Machine{}, err
		}
		f, err = c.api.Facts(ctx, &initv1.FactsRequest{}, c.with())
	}
	facts, err := machine.DecodeFacts(f.GetFacts())
	if err != nil {
		return Machine{}, fmt.Errorf("machine %s: %w", c.address, err)
	}
	return Machine{Slipway: f.GetSlipway(), Lock: f.GetLock(), Facts: facts}, nil
}

// Init hands the machine its ticket and returns how far the request is. It may be repeated with the same id and ticket: after a lost
// connection it repeats itself. A request of somebody else is a refusal that has changed nothing.
func (c *Client) Init(ctx context.Context, id string, ticket plan.Ticket) (phase string, err error) {
	data, err := json.Marshal(ticket)
	if err != nil {
		return "", fmt.Errorf("encode ticket: %w", err)
	}
	for try := 0; ; try++ {
		reply, err := c.api.Init(ctx, &initv1.InitRequest{Id: id, Ticket: data}, c.with())
		if err == nil {
			return reply.GetPhase(), nil
		}
		if !c.passing(ctx, err) {
			return "", c.explain(ctx, "send request "+id, err)
		}
		if err := c.rest(ctx, try, err); err != nil {
			return "", err
		}
	}
}

// Done tells the machine that its answer has arrived, so that it forgets the answer and the secret. Without it the machine does so
// after a while.
func (c *Client) Done(ctx context.Context, id string) error {
	if _, err := c.api.Done(ctx, &initv1.DoneRequest{Id: id}, c.with()); err != nil {
		return c.explain(ctx, "thank for request "+id, err)
	}
	return nil
}

// passing is true for what goes by: the machine is away, or its agent ends and comes back.
func (c *Client) passing(ctx context.Context, err error) bool {
	return ctx.Err() == nil && !rpc.IsUntrusted(err) && status.Code(err) == codes.Unavailable
}

// explain puts the machine and the next step to an error.
func (c *Client) explain(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	hint := ""
	switch {
	case rpc.IsUntrusted(err):
		hint = ": this is another machine, or somebody in between; the secret was not sent"
	case status.Code(err) == codes.PermissionDenied:
		hint = ": the machine has a different init secret"
	}
	if s, ok := status.FromError(err); ok && s.Code() != codes.Unknown {
		err = &callError{s, err}
	}
	return fmt.Errorf("machine %s: %s: %w%s", c.address, what, err, hint)
}

// callError is a status without the words that gRPC puts around it.
type callError struct {
	status *status.Status
	cause  error
}

func (e *callError) Error() string              { return e.status.Message() }
func (e *callError) Unwrap() error              { return e.cause }
func (e *callError) GRPCStatus() *status.Status { return e.status }

const (
	firstRest   = 20 * time.Millisecond
	longestRest = 2 * time.Second
)

// rest waits before the next try, and tells what it waited for if ctx ends meanwhile.
func (c *Client) rest(ctx context.Context, try int, cause error) error {
	if err := sleep.For(ctx, min(longestRest, firstRest<<min(try, 10))); err != nil {
		return fmt.Errorf("machine %s: wait for its agent, whose last answer was %q: %w", c.address, status.Convert(cause).Message(), err)
	}
	return nil
}
