// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/slipway-project/slipway/internal/artifact"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/planner"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// UpOptions are the choices of one up.
type UpOptions struct {
	Source    Source
	NoInstall bool          // report missing packages, install nothing
	Wait      time.Duration // how long to wait for the cluster; 0 means do not wait
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
	unlock, err := machines.Lock(ctx, u.cluster.Name, func(holder string) {
		u.report(Event{Stage: StageMachine, Phase: "wait", Text: "another slipway works on this cluster: " + holder})
	})
	if err != nil {
		return err
	}
	defer unlock()
	if err := u.immutable(); err != nil {
		return err
	}
	if err := u.keepSpec(u.cluster); err != nil {
		return err
	}
	for _, p := range u.cluster.Config.Pools {
		for _, n := range p.Nodes {
			if err := u.node(ctx, machines, n, bundle); err != nil {
				return err
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
	u.result.Changed = u.result.Changed || !change.None()
	u.report(Event{Stage: StageMachine, Machine: n.Name, Phase: "ready", Text: machineText(change)})
	return nil
}

// plan hands the machine its plan and waits for what comes of it.
func (u *up) plan(ctx context.Context, machines *machine.Local, n config.NodeName, bundle artifact.Bundle) error {
	limited, cancel := context.WithTimeout(ctx, agentLimit)
	defer cancel()
	agent, err := DialAgent(ctx, u.agentSocket(machines, n.Name))
	if err != nil {
		return err
	}
	defer agent.Close()
	facts, _, err := agent.Facts(limited)
	if err != nil {
		return u.silent(ctx, limited, n.Name, err)
	}
	node, err := config.ForNode(u.cluster.Config, n.Name, facts)
	if err != nil {
		return err
	}
	plan, err := planner.For(node, digests(bundle))
	if err != nil {
		return err
	}
	doc, err := controlDocument(u.cluster.Config, []config.Node{node})
	if err != nil {
		return err
	}
	changed, err := agent.Apply(limited, plan, doc)
	if err != nil {
		return u.silent(ctx, limited, n.Name, err)
	}
	u.result.Changed = u.result.Changed || changed
	u.report(Event{Stage: StagePlan, Machine: n.Name, Text: fmt.Sprintf("%d items", len(plan.Entries)), Total: len(plan.Entries)})
	if err := u.await(ctx, agent, n.Name); err != nil {
		return err
	}
	return u.reachable(ctx, machines, n.Name)
}

// await watches until everything is ready. On its time limit the work goes on without us.
func (u *up) await(ctx context.Context, agent *Agent, name string) error {
	if u.o.Wait == 0 {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, u.o.Wait)
	defer cancel()
	last := map[string]reconcile.Status{}
	err := agent.Watch(limited, func(s reconcile.Status, converged bool, steps int) bool {
		last[s.Ref], u.result.Steps = s, steps
		u.result.Changed = u.result.Changed || steps > 0
		u.milestone(s, name)
		u.report(convergeEvent(name, s))
		return converged
	})
	if err == nil {
		return nil
	}
	u.result.Unready = unready(last)
	if ctx.Err() == nil && errors.Is(limited.Err(), context.DeadlineExceeded) {
		return &Error{TimedOut, fmt.Errorf("cluster %s is not ready after %s; it goes on by itself: see slipway status --name %s",
			u.cluster.Name, u.o.Wait, u.cluster.Name)}
	}
	return err
}
