// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	nodev1 "github.com/slipway-project/slipway/api/node/v1"
	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/proxy"
	"github.com/slipway-project/slipway/internal/reconcile"
	"github.com/slipway-project/slipway/internal/sleep"
	"github.com/slipway-project/slipway/internal/trace"
)

// Agent is a connection to the agent of one machine.
type Agent struct {
	conn   *grpc.ClientConn
	client nodev1.NodeClient
}

// DialAgent prepares a connection to an agent's socket. The first question waits until the agent answers or its ctx ends.
func DialAgent(_ context.Context, socket string) (*Agent, error) {
	return dialAgent(func(ctx context.Context) (net.Conn, error) { return proxy.DialUnix(ctx, socket) })
}

// dialer connects to an agent, once.
type dialer func(ctx context.Context) (net.Conn, error)

// toAgent is the way to the agent of a machine.
func toAgent(at place) dialer {
	return func(ctx context.Context) (net.Conn, error) { return at.Dial(ctx, agentSock) }
}

// toSocket is the way to an agent by its socket on this machine.
func toSocket(path string) dialer {
	return func(ctx context.Context) (net.Conn, error) { return proxy.DialUnix(ctx, path) }
}

// ownAgent is the way to the agent of the machine that this program runs on.
func ownAgent(ctx context.Context) (net.Conn, error) { return proxy.DialUnix(ctx, OwnSocket) }

// agentAt is DialAgent of a machine.
func agentAt(at place) (*Agent, error) { return dialAgent(toAgent(at)) }

func dialAgent(dial dialer) (*Agent, error) {
	conn, err := grpc.NewClient("passthrough:///agent",
		grpc.WithTransportCredentials(insecure.NewCredentials()), // a 0600 unix socket
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dialSoon(ctx, dial) }),
	)
	if err != nil {
		return nil, fmt.Errorf("reach the agent: %w", err)
	}
	return &Agent{conn, nodev1.NewNodeClient(conn)}, nil
}

// dialSoon tries every few milliseconds: gRPC's own back-off starts at a second, which an agent that is just starting
// does not deserve.
func dialSoon(ctx context.Context, dial dialer) (net.Conn, error) {
	tick := time.NewTicker(3 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := dial(ctx)
		if err == nil {
			return conn, nil
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// Close ends the connection.
func (a *Agent) Close() error { return a.conn.Close() }

// Facts asks what the machine is.
func (a *Agent) Facts(ctx context.Context) (machine.Facts, string, error) {
	f, _, version, err := a.ask(ctx)
	return f, version, err
}

// Meet asks what the machine is and where it belongs.
func (a *Agent) Meet(ctx context.Context) (machine.Facts, enrolment, error) {
	f, e, _, err := a.ask(ctx)
	return f, e, err
}

func (a *Agent) ask(ctx context.Context) (machine.Facts, enrolment, string, error) {
	r, err := a.client.Facts(ctx, &nodev1.FactsRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return machine.Facts{}, enrolment{}, "", fmt.Errorf("ask the agent for facts: %w", err)
	}
	f, err := machine.DecodeFacts(r.GetFacts())
	if err != nil {
		return machine.Facts{}, enrolment{}, "", fmt.Errorf("ask the agent for facts: %w", err)
	}
	if !f.Address.IsValid() {
		return machine.Facts{}, enrolment{}, "", errors.New("the machine has no address of its own (fact \"address\"): give it one, or name it in the spec")
	}
	return f, enrolment{key: pin.Pin(r.GetKey()), phase: r.GetLock(), cluster: r.GetCluster(), node: r.GetNode()}, r.GetVersion(), nil
}

// Join tells a free machine which cluster to join, by its own key.
func (a *Agent) Join(ctx context.Context, endpoints []string, pin, node string) error {
	_, err := a.client.Join(ctx, &nodev1.JoinRequest{Endpoints: endpoints, Pin: pin, Node: node}, grpc.WaitForReady(true))
	if err != nil {
		return fmt.Errorf("tell the machine to join: %w", err)
	}
	return nil
}

// Apply hands over a plan and the control document.
func (a *Agent) Apply(ctx context.Context, p plan.Plan, control []byte) (changed bool, err error) {
	wire, err := plan.Encode(p)
	if err != nil {
		return false, err
	}
	r, err := a.client.Apply(ctx, &nodev1.ApplyRequest{Plan: wire, Control: control}, grpc.WaitForReady(true))
	if err != nil {
		return false, fmt.Errorf("hand over the plan: %w", err)
	}
	return r.GetChanged(), nil
}

// Watch calls each for every status, first all as they are, until done returns true or ctx ends. A lost connection (the
// agent was restarted) is taken up again; an agent that cannot be watched at all is an error.
func (a *Agent) Watch(ctx context.Context, each func(s reconcile.Status, converged bool, steps int) (done bool)) error {
	for {
		heard := false
		stream, err := a.client.Watch(ctx, &nodev1.WatchRequest{}, grpc.WaitForReady(true))
		for err == nil {
			var e *nodev1.Event
			if e, err = stream.Recv(); err != nil {
				break
			}
			heard = true
			if each(fromWire(e.GetItem()), e.GetConverged(), int(e.GetSteps())) {
				return nil
			}
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case status.Code(err) == codes.Unimplemented:
			return fmt.Errorf("watch the agent: %w: another slipway runs on the machine: run slipway up again", err)
		case !heard:
			_ = sleep.For(ctx, 20*time.Millisecond) // it lives and says nothing; to ask at once again would only keep it busy
		}
	}
}

// NodeStatus is one machine's state.
type NodeStatus struct {
	Cluster   string             `json:"cluster"`
	Node      string             `json:"node"`
	Release   string             `json:"release"`
	Converged bool               `json:"converged"`
	Steps     int                `json:"steps"`
	Items     []reconcile.Status `json:"items"`
	Units     []UnitStatus       `json:"units"`
}

// UnitStatus is one supervised process.
type UnitStatus struct {
	Name     string    `json:"name"`
	PID      int64     `json:"pid"`
	Since    time.Time `json:"since"`
	Ready    bool      `json:"ready"`
	Restarts int       `json:"restarts"`
	LastExit string    `json:"lastExit,omitempty"`
	Waiting  string    `json:"waiting,omitempty"`
	Oneshot  bool      `json:"oneshot,omitempty"`
}

// Status asks for everything at once.
func (a *Agent) Status(ctx context.Context) (NodeStatus, error) {
	r, err := a.client.Status(ctx, &nodev1.StatusRequest{})
	if err != nil {
		return NodeStatus{}, fmt.Errorf("ask the agent for status: %w", err)
	}
	s := NodeStatus{Cluster: r.GetCluster(), Node: r.GetNode(), Release: r.GetRelease(), Converged: r.GetConverged(), Steps: int(r.GetSteps())}
	for _, i := range r.GetItems() {
		s.Items = append(s.Items, fromWire(i))
	}
	for _, u := range r.GetUnits() {
		s.Units = append(s.Units, UnitStatus{
			u.GetName(), u.GetPid(), moment(u.GetSinceUnixNano()), u.GetReady(), int(u.GetRestarts()), u.GetLastExit(), u.GetWaitingFor(), u.GetOneshot(),
		})
	}
	return s, nil
}

// Trace asks for the spans of the last run.
func (a *Agent) Trace(ctx context.Context) ([]trace.Span, error) {
	r, err := a.client.Trace(ctx, &nodev1.TraceRequest{})
	if err != nil {
		return nil, fmt.Errorf("ask the agent for its trace: %w", err)
	}
	var spans []trace.Span
	return spans, json.Unmarshal(r.GetSpans(), &spans)
}

func fromWire(i *nodev1.Item) reconcile.Status {
	s := reconcile.Status{
		Ref: i.GetRef(), Phase: reconcile.Phase(i.GetPhase()), For: wait.For{Since: moment(i.GetSinceUnixNano()), What: i.GetWaitingFor(), Who: i.GetProvider()}, Error: i.GetError(),
	}
	if i.GetVerb() != "" {
		s.Step = &plan.Step{Verb: plan.Verb(i.GetVerb()), Why: i.GetWhy()}
	}
	return s
}

// moment is the zero time for 0, which stands for a time that is not known.
func moment(unixNano int64) time.Time {
	if unixNano == 0 {
		return time.Time{}
	}
	return time.Unix(0, unixNano)
}
