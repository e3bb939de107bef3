// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/slipway-project/slipway/internal/artifact"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/planner"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// UpOptions are the choices of one up.
type UpOptions struct {
	Source    Source
	NoInstall bool          // report missing packages, install nothing
	Wait      time.Duration // how long to wait for the cluster once its first machine runs; 0 means do not wait
	Report    func(Event)   // called from several goroutines
}

// Result is what up ends with.
type Result struct {
	Cluster    string             `json:"cluster"`
	Release    string             `json:"release"`
	Changed    bool               `json:"changed"`
	Steps      int                `json:"steps"` // carried out on the machines
	Kubeconfig string             `json:"kubeconfig"`
	Server     string             `json:"server"`
	Elapsed    time.Duration      `json:"elapsed"`
	Milestones []Milestone        `json:"milestones"`
	Unready    []reconcile.Status `json:"unready,omitempty"`
}

// Milestone is a moment that users care about.
type Milestone struct {
	Name string        `json:"name"`
	At   time.Duration `json:"at"` // since the command began
}

// Up creates a cluster or brings it to its spec. It may be interrupted at any moment and run again: it continues.
func (l *Launcher) Up(ctx context.Context, o UpOptions) (Result, error) {
	u := &up{Launcher: l, o: o, begun: time.Now()}
	u.result.Milestones = []Milestone{}
	cluster, err := l.Load(o.Source)
	if err != nil {
		return u.result, err
	}
	u.cluster, u.result.Cluster, u.result.Release = cluster, cluster.Name, cluster.Release.Kubernetes
	u.report(Event{Stage: StageSpec, Text: "Kubernetes " + cluster.Release.Kubernetes})
	if err := u.refuse(); err != nil {
		return u.result, err
	}
	return u.result, u.run(ctx)
}

// up is one run of Up.
type up struct {
	*Launcher
	o       UpOptions
	begun   time.Time
	cluster Cluster
	result  Result

	unlock   func()    // nil while the lock is not held
	kept     bool      // the spec is kept: from then on somebody else may keep another one
	deadline time.Time // of o.Wait, which counts from when the first machine runs; zero before, and without one
}

func (u *up) report(e Event) {
	if u.o.Report != nil {
		e.Elapsed = time.Since(u.begun)
		u.o.Report(e)
	}
}

// refuse says early what this version does not do on local machines.
func (u *up) refuse() error {
	nodes := 0
	for _, p := range u.cluster.Config.Pools {
		nodes += len(p.Nodes)
	}
	if nodes != 1 {
		return &Error{InvalidSpec, fmt.Errorf("spec.pools: %d machines: this slipway boots clusters of one machine; set one pool with count 1", nodes)}
	}
	for path, r := range map[string]netip.Prefix{
		"spec.networking.podCIDR": u.cluster.Config.PodCIDR, "spec.networking.serviceCIDR": u.cluster.Config.ServiceCIDR,
	} {
		if r.Overlaps(machine.DefaultSubnet()) {
			return &Error{InvalidSpec, fmt.Errorf("%s: %s overlaps %s, the network of local machines: choose another range", path, r, machine.DefaultSubnet())}
		}
	}
	if u.cluster.Config.Form != "HostUnits" {
		return &Error{InvalidSpec, fmt.Errorf("spec.controlPlane.form: %s: this slipway runs the control plane as HostUnits only", u.cluster.Config.Form)}
	}
	return nil
}

func (u *up) run(ctx context.Context) error {
	if err := u.preflight(ctx); err != nil {
		return err
	}
	bundle, store, err := u.Bundle(ctx, u.cluster.Release, u.bundleEvent)
	if err != nil {
		return err
	}
	runc := bundle.Binaries["runc"].Digest
	if err := store.Verify(ctx, runc); err != nil { // the machines' agents verify the rest as they take it
		return fmt.Errorf("verify runc: %w", err)
	}
	machines, err := u.Machines(store.Path(runc))
	if err != nil {
		return err
	}
	if err := u.hold(ctx, machines); err != nil {
		return err
	}
	defer u.letGo()
	if err := u.immutable(); err != nil {
		return err
	}
	for _, p := range u.cluster.Config.Pools {
		for _, n := range p.Nodes {
			if err := u.node(ctx, machines, n, bundle); err != nil {
				return u.late(ctx, err)
			}
		}
	}
	u.result.Elapsed = time.Since(u.begun)
	u.report(Event{Stage: StageDone})
	return nil
}

// machine makes it exist and run.
func (u *up) machine(ctx context.Context, machines *machine.Local, n config.NodeName) error {
	change, err := machines.Ensure(ctx, machine.Spec{Cluster: u.cluster.Name, Name: n.Name, Index: n.Index, Address: n.Address, Binary: u.Exe})
	if err != nil {
		return fmt.Errorf("machine %s: %w", n.Name, err)
	}
	if change.BinaryReplaced && !change.Started {
		if err := machines.RestartAgent(ctx, u.cluster.Name, n.Name); err != nil {
			return fmt.Errorf("machine %s: restart agent: %w", n.Name, err)
		}
	}
	if u.o.Wait > 0 && u.deadline.IsZero() {
		u.deadline = time.Now().Add(u.o.Wait)
	}
	u.result.Changed = u.result.Changed || !change.None()
	u.report(Event{Stage: StageMachine, Machine: n.Name, Phase: "ready", Text: machineText(change)})
	return nil
}

// plan hands the machine its plan and waits for what comes of it.
func (u *up) plan(ctx context.Context, machines *machine.Local, n config.NodeName, bundle artifact.Bundle) error {
	agent, err := DialAgent(ctx, u.agentSocket(machines, n.Name))
	if err != nil {
		return err
	}
	defer agent.Close()
	if err := u.handOver(ctx, agent, n.Name, digests(bundle)); err != nil {
		return err
	}
	return u.follow(ctx, machines, agent, n.Name)
}

// follow waits without the lock, so that an up that corrects this one does not have to.
func (u *up) follow(ctx context.Context, machines *machine.Local, agent *Agent, name string) error {
	u.letGo()
	limited, cancel := u.limit(ctx)
	defer cancel()
	if err := u.await(limited, agent, name); err != nil {
		return err
	}
	if err := u.stillOurs(); err != nil {
		return err
	}
	return u.reachable(ctx, machines, name)
}

// handOver asks the agent what its machine is and gives it the plan for that.
func (u *up) handOver(ctx context.Context, agent *Agent, name string, have planner.Components) error {
	begun := time.Now()
	limited, cancel := context.WithTimeout(ctx, u.handOverLimit())
	defer cancel()
	facts, _, err := agent.Facts(limited)
	if err != nil {
		return u.silent(limited, name, begun, err)
	}
	want, doc, err := u.decide(name, facts, have)
	if err != nil {
		return err
	}
	changed, err := agent.Apply(limited, want, doc)
	if err != nil {
		return u.silent(limited, name, begun, err)
	}
	u.result.Changed = u.result.Changed || changed
	u.report(Event{Stage: StagePlan, Machine: name, Text: fmt.Sprintf("%d items", len(want.Entries)), Total: len(want.Entries)})
	if u.o.Wait > 0 {
		return nil
	}
	if s, err := agent.Status(limited); err == nil { // only to be told
		u.result.Unready = s.Unready()
	}
	return nil
}

// decide makes the plan for one machine. The spec is kept once nothing can refuse it any more, and before the machine knows of it.
func (u *up) decide(name string, facts config.Facts, have planner.Components) (plan.Plan, []byte, error) {
	node, err := config.ForNode(u.cluster.Config, name, facts)
	if err != nil {
		return plan.Plan{}, nil, err
	}
	want, err := planner.For(node, have)
	if err != nil {
		return plan.Plan{}, nil, err
	}
	doc, err := controlDocument(u.cluster.Config, []config.Node{node})
	if err != nil {
		return plan.Plan{}, nil, err
	}
	u.kept = true
	return want, doc, u.keepSpec(u.cluster)
}

// await watches until everything is ready. On its time limit the work goes on without us.
func (u *up) await(ctx context.Context, agent *Agent, name string) error {
	if u.o.Wait == 0 {
		return nil
	}
	last := map[string]reconcile.Status{}
	err := agent.Watch(ctx, func(s reconcile.Status, converged bool, steps int) bool {
		last[s.Ref], u.result.Steps = s, steps
		u.result.Changed = u.result.Changed || steps > 0
		u.milestone(s, name)
		u.report(convergeEvent(name, s))
		return converged
	})
	if err != nil {
		u.result.Unready = unready(last)
	}
	return err
}
