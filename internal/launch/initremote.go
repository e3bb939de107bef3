// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/slipway-project/slipway/internal/core/compose"
	"github.com/slipway-project/slipway/internal/core/spec"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/planner"
	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/initclient"
)

// InitOptions say which machine shall make which cluster.
type InitOptions struct {
	Source  Source // without a file: the shortest spec
	Server  string // address of the machine, with or without the port of its init service
	Pin     string // of the machine's key
	Secret  string // the machine's init secret
	Node    string // optional: the first control plane of the spec
	Timeout time.Duration
	Report  func(Event)
}

// Initialised is the cluster that an init has made.
type Initialised struct {
	Name       string `json:"name"`
	Cluster    string `json:"cluster"` // id
	Node       string `json:"node"`
	Machine    string `json:"machine"`    // pin of the machine's key
	Server     string `json:"server"`     // of the API
	Kubeconfig string `json:"kubeconfig"` // path, 0600
	Changed    bool   `json:"changed"`    // false: an earlier call has done it
}

// remoteInit is one run of Init.
type remoteInit struct {
	*Launcher
	o       InitOptions
	begun   time.Time
	address netip.AddrPort
	cluster Cluster
	req     request
	client  *initclient.Client
	have    func(ctx context.Context) (planner.Components, error)
}

// Init makes a cluster on a machine that somebody else has booted, and returns when it stands. It may be broken off at any
// moment: the machine goes on by itself, and the same call takes it up again.
func (l *Launcher) Init(ctx context.Context, o InitOptions) (Initialised, error) {
	r := &remoteInit{Launcher: l, o: o, begun: time.Now()}
	r.have = r.stored
	return r.limited(ctx)
}

func (r *remoteInit) limited(ctx context.Context) (Initialised, error) {
	if err := r.check(); err != nil {
		return Initialised{}, err
	}
	limited, cancel := context.WithTimeout(ctx, r.o.Timeout)
	defer cancel()
	done, err := r.run(limited)
	if err != nil && ctx.Err() == nil && errors.Is(limited.Err(), context.DeadlineExceeded) {
		err = &Error{TimedOut, fmt.Errorf("cluster %s does not stand after %s; the machine goes on by itself, and the same command takes it up again: %w",
			r.cluster.Name, r.o.Timeout, err)}
	}
	return done, err
}

// check finds out what can be known without the machine.
func (r *remoteInit) check() (err error) {
	if r.address, err = initAddress(r.o.Server); err != nil {
		return err
	}
	if err := CheckPin(r.o.Pin); err != nil {
		return err
	}
	if r.o.Source.File == "" {
		one := 1
		text, err := spec.WithShape(nil, r.o.Source.Name, spec.Shape{ControlPlanes: &one})
		if err != nil {
			return err
		}
		if r.cluster, err = complete("default", text, r.o.Source); err != nil {
			return err
		}
		r.cluster.Config = compose.Place(r.cluster.Config, nil)
	} else if r.cluster, err = r.Load(r.o.Source); err != nil {
		return err
	}
	return nil
}

// initAddress is where the init service listens on that server.
func initAddress(server string) (netip.AddrPort, error) {
	if a, err := netip.ParseAddr(server); err == nil {
		return netip.AddrPortFrom(a, config.InitPort), nil
	}
	a, err := netip.ParseAddrPort(server)
	if err != nil || a.Port() == 0 {
		return a, fmt.Errorf("--server %q: use an address, or ADDRESS:PORT", server)
	}
	return a, nil
}

func (r *remoteInit) run(ctx context.Context) (Initialised, error) {
	var err error
	if r.client, err = initclient.Dial(ctx, r.address.String(), pin.Pin(r.o.Pin), r.o.Secret, nil); err != nil {
		return Initialised{}, err
	}
	defer func() { _ = r.client.Close() }()
	known, err := r.recall()
	if err != nil {
		return Initialised{}, err
	}
	if known && r.req.Cluster != "" {
		if facts, err := r.client.Facts(ctx); err != nil || facts.Lock != freePhase {
			return r.result(false), nil // it has been made, and the machine has not been reset since
		}
		known = false
	}
	if known { // the request may have arrived although its answer was lost
		done, err := r.follow(ctx)
		if status.Code(err) != codes.NotFound {
			return done, err
		}
	}
	if err := r.begin(ctx, known); err != nil {
		return Initialised{}, err
	}
	return r.follow(ctx)
}

// begin plans for the machine and hands it the request.
func (r *remoteInit) begin(ctx context.Context, known bool) error {
	have, err := r.have(ctx)
	if err != nil {
		return err
	}
	m, err := r.client.Facts(ctx)
	if err != nil {
		return err
	}
	r.report(Event{Stage: StageMachine, Phase: "ready", Text: fmt.Sprintf("slipway %s, %s", m.Slipway, m.Lock)})
	ticket, node, err := r.ticket(m.Facts, have)
	if err != nil {
		return err
	}
	if !known {
		if err := r.claim(ctx, request{ID: requestID("init"), Address: r.address.String(), Pin: r.o.Pin, Node: node}); err != nil {
			return err
		}
	}
	if _, err := r.client.Init(ctx, r.req.ID, ticket); err != nil {
		if c := status.Code(err); c == codes.FailedPrecondition || c == codes.InvalidArgument {
			return errors.Join(err, r.forget()) // this request never was one
		}
		return err
	}
	r.report(Event{Stage: StagePlan, Machine: node, Text: Plural(len(ticket.Plan.Entries), "item"), Total: len(ticket.Plan.Entries)})
	return nil
}

// stored are the digests of what the machine has to run; its own store must have the same.
func (r *remoteInit) stored(ctx context.Context) (planner.Components, error) {
	bundle, complete, err := r.inStore(ctx, r.cluster.Release)
	if err != nil {
		return nil, err
	}
	if !complete {
		return nil, fmt.Errorf("plan: this host's component store does not have Kubernetes %s: run slipway bundle build, and give the machine the same bundle "+
			"(slipway bundle export, and import there)", r.cluster.Release.Kubernetes)
	}
	return digests(bundle), nil
}

// follow shows what the machine does until the cluster stands.
func (r *remoteInit) follow(ctx context.Context) (Initialised, error) {
	result, err := r.client.Watch(ctx, r.req.ID, func(e initclient.Event) {
		if e.Item != "" {
			r.report(Event{Stage: StageConverge, Machine: r.req.Node, Item: e.Item, Phase: e.ItemPhase, Text: e.Text})
			return
		}
		r.report(Event{Stage: StageMachine, Machine: r.req.Node, Phase: "ready", Text: cmp.Or(e.Phase, e.Text)})
	})
	var failed *initclient.FailedError
	if errors.As(err, &failed) {
		return Initialised{}, errors.Join(err, r.forget())
	}
	if err != nil {
		return Initialised{}, err
	}
	text, err := withServer(string(result.Kubeconfig), r.server())
	if err != nil {
		return Initialised{}, err
	}
	if err := durable.WriteFile(r.file("kubeconfig"), 0o600, []byte(text)); err != nil {
		return Initialised{}, fmt.Errorf("keep the kubeconfig: %w", err)
	}
	r.req.Cluster = result.Cluster
	if err := r.remember(); err != nil {
		return Initialised{}, err
	}
	_ = r.client.Done(ctx, r.req.ID) // the machine forgets answer and secret; if it does not hear, after an hour
	return r.result(true), nil
}

func (r *remoteInit) result(changed bool) Initialised {
	return Initialised{
		Name: r.cluster.Name, Cluster: r.req.Cluster, Node: r.req.Node, Machine: r.req.Pin, Server: r.server(), Kubeconfig: r.file("kubeconfig"), Changed: changed,
	}
}

func (r *remoteInit) server() string {
	return "https://" + net.JoinHostPort(r.address.Addr().String(), strconv.Itoa(int(apiPort(r.cluster.Config))))
}

func (r *remoteInit) report(e Event) {
	if r.o.Report != nil {
		e.Elapsed = time.Since(r.begun)
		r.o.Report(e)
	}
}
