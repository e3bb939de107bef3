// SPDX-License-Identifier: Apache-2.0

// Package initclient is the client of the init service of a machine. It reads the machine's facts, sends it a ticket to create a
// cluster, and follows the request. It reconnects when a connection breaks or the agent restarts.
//
// It sends the secret only to a machine with the pinned key, repeats a request only with the same id, and does not treat a lost
// connection as a result. Read [Client] and [Result] first.
//
//	c, err := initclient.Dial(ctx, "192.0.2.10:9440", "sha256:…", secret, nil)
//	phase, err := c.Init(ctx, id, ticket)        // the same id is the same request
//	result, err := c.Watch(ctx, id, show)        // blocks until the cluster is ready; a *FailedError if the request failed
package initclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	initv1 "github.com/slipway-project/slipway/api/init/v1"
	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/rpc"
	"github.com/slipway-project/slipway/internal/sleep"
)

// secretHeader is the metadata key of the secret in every call.
const secretHeader = "slipway-init-secret-bin"

const (
	startLimit = 5 * time.Second // how long a machine may take to listen after it was given its init secret
	firstPause = 20 * time.Millisecond
	maxPause   = 2 * time.Second
)

// Machine describes a machine that answers init requests.
type Machine struct {
	Slipway string // version of its agent
	Lock    string // its node lock, for display: "free", "claimed (init r1)"
	Facts   machine.Facts
}

// Event reports progress of a request.
type Event struct {
	Time      time.Time
	Phase     string // new phase of the request: "claimed", "installed", "committed", "failed"; otherwise empty
	Item      string // an item of the plan
	ItemPhase string // its phase
	Text      string // a log line, or what the item waits for
}

// Result describes the new cluster.
type Result struct {
	Cluster    string
	Kubeconfig []byte // the administrator's: a secret
}

// FailedError reports that the request failed and was undone. The machine is free again; another try needs a new id.
type FailedError struct {
	ID, Why string
}

func (e *FailedError) Error() string {
	return fmt.Sprintf("init request %s failed, and the machine is free again: %s", e.ID, e.Why)
}

// Client is a client of one machine. It is safe for concurrent use.
type Client struct {
	conn    *grpc.ClientConn
	api     initv1.InitClient
	address string
	secret  bearer
}

// Dial returns a client that connects at its first call. key is the pin of the machine's key: a machine with another key does not
// receive anything. dial is optional; the default is the network.
func Dial(_ context.Context, address string, key pin.Pin, secret string, dial func(ctx context.Context, network, addr string) (net.Conn, error)) (*Client, error) {
	secret = strings.TrimSpace(secret)
	if !key.Valid() {
		return nil, fmt.Errorf("machine %s: invalid pin: want \"sha256:\" and 64 hex digits, as the machine's console shows it", address)
	}
	if secret == "" {
		return nil, fmt.Errorf("machine %s: its init secret is missing", address)
	}
	o := rpc.ClientOptions{Pin: key, ServerName: "slipway-init"}
	if dial != nil {
		o.Dialer = func(ctx context.Context, addr string) (net.Conn, error) { return dial(ctx, "tcp", addr) }
	}
	conn, err := rpc.Dial(address, o)
	if err != nil {
		return nil, fmt.Errorf("machine: %w", err)
	}
	return &Client{conn: conn, api: initv1.NewInitClient(conn), address: address, secret: bearer(secret)}, nil
}

// bearer adds the secret to each call. gRPC asks for it after the handshake, so the pin has been checked. It does not print.
type bearer string

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	if b == "" {
		return nil, errors.New("the init secret is missing")
	}
	return map[string]string{secretHeader: string(b)}, nil
}

func (bearer) RequireTransportSecurity() bool { return true }
func (bearer) String() string                 { return "[redacted]" }
func (bearer) GoString() string               { return "[redacted]" }

// Close cancels all calls.
func (c *Client) Close() error { return c.conn.Close() }

func (c *Client) withSecret() grpc.CallOption { return grpc.PerRPCCredentials(c.secret) }

// Facts asks the machine for its facts.
func (c *Client) Facts(ctx context.Context) (Machine, error) {
	f, err := c.api.Facts(ctx, &initv1.FactsRequest{}, c.withSecret())
	for try, begun := 0, time.Now(); err != nil; try++ {
		if !c.temporary(ctx, err) || time.Since(begun) > startLimit {
			return Machine{}, c.explain(ctx, "read its facts", err)
		}
		if err := c.pause(ctx, try, err); err != nil {
			return Machine{}, err
		}
		f, err = c.api.Facts(ctx, &initv1.FactsRequest{}, c.withSecret())
	}
	facts, err := machine.DecodeFacts(f.GetFacts())
	if err != nil {
		return Machine{}, fmt.Errorf("machine %s: %w", c.address, err)
	}
	return Machine{Slipway: f.GetSlipway(), Lock: f.GetLock(), Facts: facts}, nil
}

// Init sends the machine its ticket and returns the phase of the request. It retries while the machine is unavailable, and may be
// called again with the same id and ticket. If the machine is not free, it is refused and changes nothing.
func (c *Client) Init(ctx context.Context, id string, ticket plan.Ticket) (phase string, err error) {
	data, err := json.Marshal(ticket)
	if err != nil {
		return "", fmt.Errorf("encode ticket: %w", err)
	}
	for try := 0; ; try++ {
		reply, err := c.api.Init(ctx, &initv1.InitRequest{Id: id, Ticket: data}, c.withSecret())
		if err == nil {
			return reply.GetPhase(), nil
		}
		if !c.temporary(ctx, err) {
			return "", c.explain(ctx, "send request "+id, err)
		}
		if err := c.pause(ctx, try, err); err != nil {
			return "", err
		}
	}
}

// Done tells the machine that the client has the result, so that the machine deletes the result and the secret. Otherwise it deletes
// them after an hour.
func (c *Client) Done(ctx context.Context, id string) error {
	if _, err := c.api.Done(ctx, &initv1.DoneRequest{Id: id}, c.withSecret()); err != nil {
		return c.explain(ctx, "confirm the result of request "+id, err)
	}
	return nil
}

// Watch follows a request to its end. It calls each once for every event, one at a time. It reconnects without a limit, until ctx
// ends or the machine refuses the call. The error is a *FailedError if the request failed.
func (c *Client) Watch(ctx context.Context, id string, each func(Event)) (Result, error) {
	seen := &progress{each: each}
	for try := 0; ; try++ {
		before := seen.count
		r, err := c.watchOnce(ctx, id, seen)
		switch {
		case err == nil && r.GetError() != "":
			return Result{}, &FailedError{ID: id, Why: r.GetError()}
		case err == nil:
			return Result{Cluster: r.GetCluster(), Kubeconfig: r.GetKubeconfig()}, nil
		case !c.temporary(ctx, err):
			return Result{}, c.explain(ctx, "watch request "+id, err)
		}
		if seen.count > before {
			try = 0
		}
		if err := c.pause(ctx, try, err); err != nil {
			return Result{}, err
		}
	}
}

func (c *Client) watchOnce(ctx context.Context, id string, seen *progress) (*initv1.Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.api.Watch(ctx, &initv1.WatchRequest{Id: id}, c.withSecret())
	if err != nil {
		return nil, err
	}
	for first := true; ; first = false {
		e, err := stream.Recv()
		if errors.Is(err, io.EOF) { // the outcome is unknown, so ask again
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

// progress filters the events that were shown before. Each stream starts with the first event of the request. If that is the same as
// before, the following events have increasing times. A restarted agent starts a new series.
type progress struct {
	each  func(Event) // optional
	first int64       // time of the first event of the series, in ns
	last  int64       // time of the last event that was shown, in ns
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
	if p.each != nil {
		p.each(Event{Time: time.Unix(0, at), Phase: e.GetPhase(), Item: e.GetItem(), ItemPhase: e.GetItemPhase(), Text: e.GetText()})
	}
}

// temporary reports whether a call may succeed later: the machine is unreachable, or its agent is restarting.
func (c *Client) temporary(ctx context.Context, err error) bool {
	return ctx.Err() == nil && !rpc.IsUntrusted(err) && status.Code(err) == codes.Unavailable
}

// pause waits before the next try. If ctx ends, the error contains the cause of the last failure.
func (c *Client) pause(ctx context.Context, try int, cause error) error {
	if err := sleep.For(ctx, min(maxPause, firstPause<<min(try, 10))); err != nil {
		return fmt.Errorf("machine %s: wait for its agent (last error: %s): %w", c.address, status.Convert(cause).Message(), err)
	}
	return nil
}

// explain adds the machine and a hint to an error.
func (c *Client) explain(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	hint := ""
	switch {
	case rpc.IsUntrusted(err):
		hint = ": this is a different machine, or the connection is intercepted; the secret was not sent"
	case status.Code(err) == codes.PermissionDenied:
		hint = ": the machine has a different init secret"
	}
	if s, ok := status.FromError(err); ok && s.Code() != codes.Unknown {
		err = &callError{s, err}
	}
	return fmt.Errorf("machine %s: %s: %w%s", c.address, what, err, hint)
}

// callError is a gRPC status without gRPC's prefix in its text.
type callError struct {
	status *status.Status
	cause  error
}

func (e *callError) Error() string              { return e.status.Message() }
func (e *callError) Unwrap() error              { return e.cause }
func (e *callError) GRPCStatus() *status.Status { return e.status }
