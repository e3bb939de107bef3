// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/slipway-project/slipway/internal/bundle"
	"github.com/slipway-project/slipway/internal/clusterdir"
	"github.com/slipway-project/slipway/internal/core/compose"
	"github.com/slipway-project/slipway/internal/core/config"
	coremachine "github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/planner"
	"github.com/slipway-project/slipway/internal/core/spec"
	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/initclient"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/operate"
	"github.com/slipway-project/slipway/internal/report"
)

// InitOptions say which machine is to create which cluster.
type InitOptions struct {
	Source  clusterdir.Source // without a file: the default spec
	Server  string            // address of the machine, with or without the port of its init service
	Pin     string            // of the machine's key
	Secret  string            // the machine's init secret
	Node    string            // optional: the first control plane of the spec
	Timeout time.Duration
	Report  report.Func
}

// Initialized is the cluster that an Init has created.
type Initialized struct {
	Name       string `json:"name"`
	Cluster    string `json:"cluster"` // id
	Node       string `json:"node"`
	Machine    string `json:"machine"`    // pin of the machine's key
	Server     string `json:"server"`     // of the API
	Kubeconfig string `json:"kubeconfig"` // path, 0600
	Changed    bool   `json:"changed"`    // false: an earlier call created it
}

// Init creates a cluster on a machine that was booted by other means, and returns when the cluster is running. It may be
// interrupted at any moment: the machine continues on its own, and the same call resumes it.
func Init(ctx context.Context, dir clusterdir.Dir, o InitOptions) (Initialized, error) {
	return initWith(ctx, dir, o, storedComponents)
}

// components finds the digests of what the machine must run; the machine's own store must have the same.
type components func(ctx context.Context, dir clusterdir.Dir, c clusterdir.Cluster) (planner.Components, error)

func storedComponents(ctx context.Context, dir clusterdir.Dir, c clusterdir.Cluster) (planner.Components, error) {
	built, complete, err := dir.Components().Lookup(ctx, c.Release)
	if err != nil {
		return nil, err
	}
	if !complete {
		return nil, fmt.Errorf("plan: the component store of this host does not have Kubernetes %s: run slipway bundle build, and give the machine the same bundle "+
			"(slipway bundle export, and import there)", c.Release.Kubernetes)
	}
	return bundle.Digests(built), nil
}

func initWith(ctx context.Context, dir clusterdir.Dir, o InitOptions, have components) (Initialized, error) {
	r := &remoteInit{o: o, dir: dir, report: o.Report.Since(time.Now()), components: have}
	if err := r.check(); err != nil {
		return Initialized{}, err
	}
	limited, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	done, err := r.run(limited)
	if err != nil && ctx.Err() == nil && errors.Is(limited.Err(), context.DeadlineExceeded) {
		err = &report.Error{Kind: report.TimedOut, Err: fmt.Errorf("cluster %s is not running after %s; the machine continues on its own, and the same command resumes it: %w",
			r.cluster.Name, o.Timeout, err)}
	}
	return done, err
}

// remoteInit is one run of Init.
type remoteInit struct {
	o          InitOptions
	dir        clusterdir.Dir
	report     report.Func
	components components

	address netip.AddrPort
	cluster clusterdir.Cluster
	client  *initclient.Client
	req     remoteRequest
}

// remoteRequest is what this host remembers of an init, so that the same command is the same request.
type remoteRequest struct {
	ID      string `json:"id"`
	Address string `json:"address"` // of the init service
	Pin     string `json:"pin"`
	Node    string `json:"node"`
	Cluster string `json:"cluster,omitempty"` // id, when it is done
}

const remoteRequestSchema = 1

// check finds invalid options without the machine.
func (r *remoteInit) check() (err error) {
	if r.address, err = initAddress(r.o.Server); err != nil {
		return err
	}
	if err := operate.CheckPin("--pin", r.o.Pin); err != nil {
		return err
	}
	if r.o.Source.File != "" {
		r.cluster, err = r.dir.Load(r.o.Source)
		return err
	}
	one := 1
	text, err := spec.WithShape(nil, r.o.Source.Name, spec.Shape{ControlPlanes: &one})
	if err != nil {
		return err
	}
	r.cluster, err = clusterdir.CompleteAs("default", text, r.o.Source)
	return err
}

// initAddress is where the init service of a server listens.
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

func (r *remoteInit) run(ctx context.Context) (Initialized, error) {
	var err error
	if r.client, err = initclient.Dial(ctx, r.address.String(), pin.Pin(r.o.Pin), r.o.Secret, nil); err != nil {
		return Initialized{}, err
	}
	defer func() { _ = r.client.Close() }()
	known, err := r.load()
	if err != nil {
		return Initialized{}, err
	}
	if known && r.req.Cluster != "" {
		if facts, err := r.client.Facts(ctx); err != nil || facts.Lock != string(lock.Free) {
			return r.result(false), nil // it was created, and the machine has not been reset since
		}
		known = false
	}
	if known { // the request may have arrived although its answer was lost
		done, err := r.follow(ctx)
		if status.Code(err) != codes.NotFound {
			return done, err
		}
	}
	if err := r.request(ctx, known); err != nil {
		return Initialized{}, err
	}
	return r.follow(ctx)
}

// request plans for the machine and sends it the request to create the cluster.
func (r *remoteInit) request(ctx context.Context, known bool) error {
	have, err := r.components(ctx, r.dir, r.cluster)
	if err != nil {
		return err
	}
	m, err := r.client.Facts(ctx)
	if err != nil {
		return err
	}
	r.report(report.Event{Stage: report.StageMachine, Phase: "ready", Text: fmt.Sprintf("slipway %s, %s", m.Slipway, m.Lock)})
	ticket, node, err := r.ticket(m.Facts, have)
	if err != nil {
		return err
	}
	if !known {
		if err := r.claim(ctx, remoteRequest{ID: newRequestID("init"), Address: r.address.String(), Pin: r.o.Pin, Node: node}); err != nil {
			return err
		}
	}
	if _, err := r.client.Init(ctx, r.req.ID, ticket); err != nil {
		if c := status.Code(err); c == codes.FailedPrecondition || c == codes.InvalidArgument {
			return errors.Join(err, r.forget()) // the machine has not accepted this request
		}
		return err
	}
	r.report(report.Event{Stage: report.StagePlan, Machine: node, Text: report.Count(len(ticket.Plan.Entries), "item"), Total: len(ticket.Plan.Entries)})
	return nil
}

// ticket makes the machine the first control plane of the spec's cluster. The plan names this machine and those whose address
// is in the spec; the others get their records when they join.
func (r *remoteInit) ticket(facts coremachine.Facts, have planner.Components) (plan.Ticket, string, error) {
	var first *target
	var known targets
	for _, t := range specTargets(r.cluster.Config) {
		if first == nil && t.isControlPlane() && (r.o.Node == "" || r.o.Node == t.Name) {
			first = t
		}
		t.facts.Address = t.Address
		if t == first || t.Address.IsValid() {
			known = append(known, t)
		}
	}
	if first == nil {
		return plan.Ticket{}, "", invalid("spec.pools: no control plane %q in cluster %s: a control plane creates the cluster", r.o.Node, r.cluster.Name)
	}
	if !facts.Address.IsValid() {
		return plan.Ticket{}, "", errors.New("the machine has no address of its own: assign one")
	}
	first.facts = facts
	if !first.Address.IsValid() {
		first.Address = facts.Address
	}
	if first.Address != facts.Address {
		return plan.Ticket{}, "", invalid("spec.pools: machine %s has address %s in the spec, but reports %s: correct the spec, or name another --node", first.Name, first.Address, facts.Address)
	}
	first.Key = pin.Pin(r.o.Pin)
	p, err := known.plan(r.cluster.Config, first.Name, have)
	return p.ticket(), first.Name, err
}

// follow shows what the machine does until the cluster is running.
func (r *remoteInit) follow(ctx context.Context) (Initialized, error) {
	result, err := r.client.Watch(ctx, r.req.ID, func(e initclient.Event) {
		if e.Item != "" {
			r.report(report.Event{Stage: report.StageConverge, Machine: r.req.Node, Item: e.Item, Phase: e.ItemPhase, Text: e.Text})
			return
		}
		r.report(report.Event{Stage: report.StageMachine, Machine: r.req.Node, Phase: "ready", Text: cmp.Or(e.Phase, e.Text)})
	})
	var failed *initclient.FailedError
	if errors.As(err, &failed) {
		return Initialized{}, errors.Join(err, r.forget())
	}
	if err != nil {
		return Initialized{}, err
	}
	text, err := operate.WithServer(string(result.Kubeconfig), r.server())
	if err != nil {
		return Initialized{}, err
	}
	if err := durable.WriteFile(r.file("kubeconfig"), 0o600, []byte(text)); err != nil {
		return Initialized{}, fmt.Errorf("store the kubeconfig: %w", err)
	}
	r.req.Cluster = result.Cluster
	if err := r.save(); err != nil {
		return Initialized{}, err
	}
	_ = r.client.Done(ctx, r.req.ID) // the machine deletes answer and secret now; otherwise after an hour
	return r.result(true), nil
}

func (r *remoteInit) result(changed bool) Initialized {
	return Initialized{
		Name: r.cluster.Name, Cluster: r.req.Cluster, Node: r.req.Node, Machine: r.req.Pin, Server: r.server(), Kubeconfig: r.file("kubeconfig"), Changed: changed,
	}
}

func (r *remoteInit) server() string {
	return "https://" + net.JoinHostPort(r.address.Addr().String(), strconv.Itoa(int(compose.APIPort(r.cluster.Config))))
}

// file is one of the files that this host keeps for the cluster.
func (r *remoteInit) file(name string) string { return r.dir.Remote(r.cluster.Name, name) }

// load reads the stored request. A cluster is created on one machine only.
func (r *remoteInit) load() (known bool, err error) {
	err = durable.Load(r.file("init.json"), remoteRequestSchema, &r.req)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the init request: %w", err)
	}
	if r.req.Address != r.address.String() || r.req.Pin != r.o.Pin {
		return false, fmt.Errorf("cluster %s was begun on the machine at %s with key %s: use that machine, give the new cluster another --name, or remove %s",
			r.cluster.Name, r.req.Address, r.req.Pin, r.file(""))
	}
	return true, nil
}

// claim stores a new request in place of the one that load has found. Of two commands that begin the same cluster at once only
// one succeeds: the other continues with its request, or is refused if it is about another machine.
func (r *remoteInit) claim(ctx context.Context, next remoteRequest) error {
	before := r.req.ID
	if err := os.MkdirAll(r.file(""), 0o700); err != nil {
		return fmt.Errorf("store the init request: %w", err)
	}
	unlock, err := durable.LockFile(ctx, r.file("lock"), fmt.Sprintf("process %d", os.Getpid()), nil)
	if err != nil {
		return fmt.Errorf("store the init request: %w", err)
	}
	defer unlock()
	known, err := r.load()
	if err != nil || known && r.req.ID != before {
		return err
	}
	r.req = next
	return r.save()
}

func (r *remoteInit) save() error {
	if err := os.MkdirAll(r.file(""), 0o700); err != nil {
		return fmt.Errorf("store the init request: %w", err)
	}
	if err := durable.WriteFile(r.file("cluster.yaml"), 0o600, r.cluster.Spec); err != nil {
		return fmt.Errorf("store spec: %w", err)
	}
	return durable.Save(r.file("init.json"), remoteRequestSchema, r.req)
}

// forget makes the next init a new request.
func (r *remoteInit) forget() error {
	for _, name := range []string{"init.json.prev", "init.json"} {
		if err := os.Remove(r.file(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the init request: %w", err)
		}
	}
	return durable.SyncDir(r.file(""))
}
