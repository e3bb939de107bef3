// SPDX-License-Identifier: Apache-2.0

// Package agentclient talks to the agent of a machine over its unix socket, however that socket is reached. It translates the
// agent's wire types (api/node/v1) to Slipway's own, once, and turns gRPC errors into messages for people ([Plain]).
//
// It does not know which machines a cluster has; package inventory does. Read [Agent] first, then [Target].
//
//	agent, err := agentclient.Dial(agentclient.Socket(agentclient.OwnSocket))
//	info, err := agent.Info(ctx)
package agentclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	controlv1 "github.com/slipway-project/slipway/api/control/v1"
	nodev1 "github.com/slipway-project/slipway/api/node/v1"
	coremachine "github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/proxy"
	"github.com/slipway-project/slipway/internal/reconcile"
	"github.com/slipway-project/slipway/internal/sleep"
	"github.com/slipway-project/slipway/internal/trace"
)

// OwnSocket is the socket of the agent of the machine that this program runs on.
const OwnSocket = machine.RunDir + "/agent.sock"

// Dialer connects to an agent's socket, once, without retrying.
type Dialer func(ctx context.Context) (net.Conn, error)

// Socket dials a unix socket of this machine.
func Socket(path string) Dialer {
	return func(ctx context.Context) (net.Conn, error) { return proxy.DialUnix(ctx, path) }
}

// Agent is a connection to the agent of one machine. It is safe for concurrent use.
type Agent struct {
	conn   *grpc.ClientConn
	client nodev1.NodeClient
}

// Dial prepares a connection. It does not connect yet: the first request waits until the agent answers or its context ends.
func Dial(dial Dialer) (*Agent, error) {
	conn, err := grpc.NewClient("passthrough:///agent",
		grpc.WithTransportCredentials(insecure.NewCredentials()), // a unix socket with mode 0600
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dialRetrying(ctx, dial) }),
	)
	if err != nil {
		return nil, fmt.Errorf("connect to the agent: %w", err)
	}
	return &Agent{conn, nodev1.NewNodeClient(conn)}, nil
}

// dialRetrying tries every few milliseconds until ctx ends: gRPC's own back-off starts at a second, which is long for an
// agent that is just starting.
func dialRetrying(ctx context.Context, dial Dialer) (net.Conn, error) {
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

// Control is the administration service of the control role. An agent whose machine is not a ready control plane answers
// every call with codes.Unavailable or codes.Unimplemented; [AskControl] handles both.
func (a *Agent) Control() controlv1.ControlClient { return controlv1.NewControlClient(a.conn) }

// Info is what an agent reports of its machine.
type Info struct {
	Facts   coremachine.Facts // without an address while the machine has none
	Version string            // of the agent's slipway
	Membership
}

// Membership is which cluster a machine belongs to.
type Membership struct {
	Machine string     `json:"machine"` // set by callers that know the machine's name
	Phase   lock.Phase `json:"lock"`
	Cluster string     `json:"cluster,omitempty"` // id; only of a committed machine
	Node    string     `json:"node,omitempty"`    // only of a committed machine
	Key     pin.Pin    `json:"key,omitempty"`     // of the machine
}

// Info asks what the machine is and which cluster it belongs to.
func (a *Agent) Info(ctx context.Context) (Info, error) {
	r, err := a.client.Facts(ctx, &nodev1.FactsRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return Info{}, fmt.Errorf("ask the agent for facts: %w", Plain(err))
	}
	f, err := coremachine.DecodeFacts(r.GetFacts())
	if err != nil {
		return Info{}, fmt.Errorf("ask the agent for facts: %w", err)
	}
	m := Membership{Phase: lock.Phase(r.GetLock()), Cluster: r.GetCluster(), Node: r.GetNode(), Key: pin.Pin(r.GetKey())}
	return Info{Facts: f, Version: r.GetVersion(), Membership: m}, nil
}

// Addressed is Info of a machine that must have an address, as every node must.
func (a *Agent) Addressed(ctx context.Context) (Info, error) {
	i, err := a.Info(ctx)
	if err == nil && !i.Facts.Address.IsValid() {
		err = errors.New("the machine has no address of its own (fact \"address\"): assign one, or name it in the spec")
	}
	return i, err
}

// JoinRequest says which cluster a machine is to join.
type JoinRequest struct {
	Endpoints []string // host:port of join services
	Pin       pin.Pin  // of the join CA
	Token     string   // empty: the cluster knows the machine's key
	Node      string   // optional
}

// Join tells a free machine which cluster to join. The agent stores that and keeps trying on its own.
func (a *Agent) Join(ctx context.Context, r JoinRequest) error {
	_, err := a.client.Join(ctx, &nodev1.JoinRequest{Endpoints: r.Endpoints, Pin: string(r.Pin), Token: r.Token, Node: r.Node}, grpc.WaitForReady(true))
	if err != nil {
		return fmt.Errorf("request the join: %w", err)
	}
	return nil
}

// Reset removes the machine from the cluster with that id and deletes everything that was made for it there. The agent
// refuses while the cluster would lose its quorum; lost says that the cluster no longer exists and must not be asked.
func (a *Agent) Reset(ctx context.Context, cluster string, lost bool) error {
	_, err := a.client.Reset(ctx, &nodev1.ResetRequest{Cluster: cluster, Lost: lost})
	return err
}

// Apply hands over a plan and the control document, and reports whether either differs from what the agent had.
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

// Diff is what applying a plan would change on a machine.
type Diff struct {
	Steps          []Step
	Unknown        []Step // items whose state cannot be observed; they have no verb, and Why says the reason
	ControlChanged bool   // the control document differs from the stored one
}

// Step is one step of a [Diff].
type Step struct {
	Verb plan.Verb
	Ref  string
	Why  string
}

// Diff asks what applying a plan and a control document would change. Nothing is changed.
func (a *Agent) Diff(ctx context.Context, p plan.Plan, control []byte) (Diff, error) {
	wire, err := plan.Encode(p)
	if err != nil {
		return Diff{}, err
	}
	r, err := a.client.Diff(ctx, &nodev1.DiffRequest{Plan: wire, Control: control}, grpc.WaitForReady(true))
	if err != nil {
		return Diff{}, Plain(err)
	}
	return Diff{Steps: stepsFromWire(r.GetSteps()), Unknown: stepsFromWire(r.GetUnknown()), ControlChanged: r.GetControlChanged()}, nil
}

func stepsFromWire(in []*nodev1.Step) []Step {
	out := make([]Step, 0, len(in))
	for _, s := range in {
		out = append(out, Step{Verb: plan.Verb(s.GetVerb()), Ref: s.GetRef(), Why: s.GetWhy()})
	}
	return out
}

// Watch calls each for every status, beginning with the current one of every item, until done is true or ctx ends. It
// reconnects when the agent is restarted. An agent that does not support watching is an error.
func (a *Agent) Watch(ctx context.Context, each func(s reconcile.Status, converged bool, steps int) (done bool)) error {
	for {
		received := false
		stream, err := a.client.Watch(ctx, &nodev1.WatchRequest{}, grpc.WaitForReady(true))
		for err == nil {
			var e *nodev1.Event
			if e, err = stream.Recv(); err != nil {
				break
			}
			received = true
			if each(itemFromWire(e.GetItem()), e.GetConverged(), int(e.GetSteps())) {
				return nil
			}
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case status.Code(err) == codes.Unimplemented:
			return fmt.Errorf("watch the agent: %w: the machine runs another version of slipway: run slipway up again", err)
		case !received:
			_ = sleep.For(ctx, 20*time.Millisecond) // the agent is up but silent; retrying at once would only keep it busy
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

// Status asks for the state of all items and units. Unlike other requests it does not wait for an agent that is down.
func (a *Agent) Status(ctx context.Context) (NodeStatus, error) {
	r, err := a.client.Status(ctx, &nodev1.StatusRequest{})
	if err != nil {
		return NodeStatus{}, fmt.Errorf("ask the agent for status: %w", err)
	}
	s := NodeStatus{Cluster: r.GetCluster(), Node: r.GetNode(), Release: r.GetRelease(), Converged: r.GetConverged(), Steps: int(r.GetSteps())}
	for _, i := range r.GetItems() {
		s.Items = append(s.Items, itemFromWire(i))
	}
	for _, u := range r.GetUnits() {
		s.Units = append(s.Units, UnitStatus{
			u.GetName(), u.GetPid(), timeOf(u.GetSinceUnixNano()), u.GetReady(), int(u.GetRestarts()), u.GetLastExit(), u.GetWaitingFor(), u.GetOneshot(),
		})
	}
	return s, nil
}

// Unready lists the items that are not ready: first those that fail, then those in progress, which may only suffer from the
// failure, then those that wait for others.
func (n NodeStatus) Unready() []reconcile.Status {
	var failing, active, waiting []reconcile.Status
	for _, i := range n.Items {
		switch i.Phase {
		case reconcile.Ready:
		case reconcile.Waiting:
			waiting = append(waiting, i)
		case reconcile.Failing:
			failing = append(failing, i)
		case reconcile.Doing, reconcile.Starting:
			active = append(active, i)
		}
	}
	return append(append(failing, active...), waiting...)
}

// Trace asks for the spans of the agent's last run.
func (a *Agent) Trace(ctx context.Context) ([]trace.Span, error) {
	r, err := a.client.Trace(ctx, &nodev1.TraceRequest{})
	if err != nil {
		return nil, fmt.Errorf("ask the agent for its trace: %w", err)
	}
	var spans []trace.Span
	return spans, json.Unmarshal(r.GetSpans(), &spans)
}

// Certificate is one certificate on a node's disk.
type Certificate struct {
	Node    string    `json:"node"` // set by callers that know the node's name
	Name    string    `json:"name"`
	Kind    string    `json:"kind"` // CA or Leaf
	Signer  string    `json:"signer,omitempty"`
	Subject string    `json:"subject"`
	Path    string    `json:"path"`
	Issued  time.Time `json:"issued,omitzero"` // zero, like the times below, when there is no readable certificate
	Expires time.Time `json:"expires,omitzero"`
	Renewed time.Time `json:"renewed,omitzero"` // when the agent renews it; zero: never
}

// Certificates asks for the certificates of the machine's plan.
func (a *Agent) Certificates(ctx context.Context) ([]Certificate, error) {
	r, err := a.client.Certificates(ctx, &nodev1.CertificatesRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return nil, err
	}
	var out []Certificate
	for _, c := range r.GetCertificates() {
		out = append(out, Certificate{
			Name: c.GetName(), Kind: c.GetKind(), Signer: c.GetSigner(), Subject: c.GetSubject(), Path: c.GetPath(),
			Issued: dateOf(c.GetNotBeforeUnix()), Expires: dateOf(c.GetNotAfterUnix()), Renewed: dateOf(c.GetRenewedUnix()),
		})
	}
	return out, nil
}

// Renew requests the renewal of the named certificates, or of all that can be renewed, and returns their names. It does not
// wait until they are renewed; [Agent.Watch] shows that.
func (a *Agent) Renew(ctx context.Context, names []string) ([]string, error) {
	r, err := a.client.Renew(ctx, &nodev1.RenewRequest{Names: names}, grpc.WaitForReady(true))
	return r.GetNames(), err
}

func itemFromWire(i *nodev1.Item) reconcile.Status {
	s := reconcile.Status{
		Ref: i.GetRef(), Phase: reconcile.Phase(i.GetPhase()), Error: i.GetError(),
		For: wait.For{Since: timeOf(i.GetSinceUnixNano()), What: i.GetWaitingFor(), Who: i.GetProvider()},
	}
	if i.GetVerb() != "" {
		s.Step = &plan.Step{Verb: plan.Verb(i.GetVerb()), Why: i.GetWhy()}
	}
	return s
}

// timeOf is the zero time for 0, which the wire uses for an unknown time.
func timeOf(unixNano int64) time.Time {
	if unixNano == 0 {
		return time.Time{}
	}
	return time.Unix(0, unixNano)
}

// dateOf is timeOf for seconds, in UTC.
func dateOf(unix int64) time.Time {
	if unix == 0 {
		return time.Time{}
	}
	return time.Unix(unix, 0).UTC()
}

// Unready lists those of the last statuses, by item, that are not ready, in the order of their names.
func Unready(last map[string]reconcile.Status) []reconcile.Status {
	var out []reconcile.Status
	for _, ref := range slices.Sorted(maps.Keys(last)) {
		if s := last[ref]; s.Phase != reconcile.Ready {
			out = append(out, s)
		}
	}
	return out
}
