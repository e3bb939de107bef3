// SPDX-License-Identifier: Apache-2.0

// Package bootstrap creates clusters and brings them to their spec: [Up] on local machines, [Apply] on existing machines over
// SSH, [Init] on a single machine elsewhere. Up and Apply share one engine, which knows its machines only through package
// provider: it starts them, lets the first control plane create the cluster, hands plans to the machines that are in it, and
// tells the others to join. [PlanNode] and [DiffCluster] show what would happen, and [Down] removes a cluster.
//
// The packages of core make the plans, and package operate works with clusters that are running.
//
// Read [Up] first, then engine.converge.
package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/agentclient"
	"github.com/slipway-project/slipway/internal/bundle"
	"github.com/slipway-project/slipway/internal/clusterdir"
	"github.com/slipway-project/slipway/internal/core/compose"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/inventory"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/preflight"
	"github.com/slipway-project/slipway/internal/provider"
	"github.com/slipway-project/slipway/internal/proxy"
	"github.com/slipway-project/slipway/internal/report"
)

// UpOptions are the options of one Up.
type UpOptions struct {
	Source    clusterdir.Source
	NoInstall bool             // report missing packages, install nothing
	Init      machine.InitKind // optional: what new machines boot with; see [machine.InitKind]
	Wait      time.Duration    // how long to wait for the cluster once its machines are running; 0: do not wait
	Report    report.Func
}

// Up creates a cluster of local machines or brings it to its spec. It may be interrupted at any moment and run again: it
// continues. The result is valid as far as the work got, also with an error.
func Up(ctx context.Context, inv inventory.Inventory, o UpOptions) (Result, error) {
	t := newTracker(o.Report, o.Wait)
	cluster, err := inv.Dir.Load(o.Source)
	if err != nil {
		return t.result, err
	}
	t.begin(cluster)
	for _, text := range cluster.Unplaced() {
		t.report(report.Event{Stage: report.StageSpec, Text: text})
	}
	if err := checkLocal(inv, cluster); err != nil {
		return t.result, err
	}
	if err := preflightHost(ctx, inv, cluster, o, t.report); err != nil {
		return t.result, err
	}
	components := inv.Dir.Components()
	built, err := components.Build(ctx, cluster.Release, t.build)
	if err != nil {
		return t.result, err
	}
	t.built()
	store, err := components.Open()
	if err != nil {
		return t.result, err
	}
	runc := built.Binaries["runc"].Digest
	if err := store.Verify(ctx, runc); err != nil { // agents verify the other components when they use them
		return t.result, fmt.Errorf("verify runc: %w", err)
	}
	machines, err := inv.Local(cluster.Name, store.Path(runc))
	if err != nil {
		return t.result, err
	}
	e := newEngine(inv, cluster, bundle.Digests(built), t)
	if err := e.lock.acquire(ctx); err != nil {
		return t.result, err
	}
	defer e.lock.release()
	if e.existing, err = machines.List(ctx); err != nil {
		return t.result, err
	}
	if machines.Init, err = initKind(cluster.Name, e.existing, o.Init); err != nil {
		return t.result, err
	}
	e.machines = machines
	return t.finish(ctx, e.run(ctx))
}

// checkLocal refuses what cannot be done on local machines before anything is changed.
func checkLocal(inv inventory.Inventory, c clusterdir.Cluster) error {
	if remote, err := inv.IsRemote(c.Name); err != nil || remote {
		return errors.Join(err, fmt.Errorf("cluster %s consists of existing machines: bring it to its spec with slipway apply", c.Name))
	}
	for path, r := range map[string]netip.Prefix{
		"spec.networking.podCIDR": c.Config.PodCIDR, "spec.networking.serviceCIDR": c.Config.ServiceCIDR,
	} {
		if r.Overlaps(machine.DefaultSubnet()) {
			return invalid("%s: %s overlaps %s, the network of local machines: choose another range", path, r, machine.DefaultSubnet())
		}
	}
	return nil
}

// initKind is what a cluster's new machines boot with: what is requested, or else what its machines have. An existing machine
// keeps what it has.
func initKind(cluster string, existing []machine.Status, wanted machine.InitKind) (machine.InitKind, error) {
	for _, m := range existing {
		if wanted == "" {
			wanted = m.Init
		}
		if wanted != m.Init {
			return "", fmt.Errorf("machine %s uses init %s, but --init is %s: a machine keeps the init that it was created with; omit --init, or run slipway down --name %s first",
				m.Name, m.Init, wanted, cluster)
		}
	}
	return wanted, nil
}

// invalid is an error about the spec.
func invalid(format string, args ...any) error {
	return &report.Error{Kind: report.InvalidSpec, Err: fmt.Errorf(format, args...)}
}

// keepIndexes gives the nodes the indexes, and so the pod CIDRs, that their machines have already.
func keepIndexes(c config.Cluster, existing []machine.Status) config.Cluster {
	have := map[string]int{}
	for _, m := range existing {
		have[m.Name] = m.Index
	}
	return c.Keeping(have)
}

// frozenChanges compares a cluster with its stored spec: which changes of fields that cannot be changed in an existing cluster
// the new spec has, and which machines it no longer has. A new cluster has neither.
func frozenChanges(dir clusterdir.Dir, now clusterdir.Cluster, existing []machine.Status) (changes, removed []string, err error) {
	old, err := dir.Stored(now.Name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	old.Config = keepIndexes(old.Config, existing)
	return compose.Immutable(withAddresses(old.Config), withAddresses(now.Config.Keeping(compose.Indexes(old.Config)))), compose.Missing(old.Config, now.Config), nil
}

// withAddresses is the configuration with the addresses that this host assigns to local machines.
func withAddresses(c config.Cluster) config.Cluster {
	c.Pools = slices.Clone(c.Pools)
	for i, p := range c.Pools {
		c.Pools[i].Nodes = slices.Clone(p.Nodes)
		for j, n := range p.Nodes {
			c.Pools[i].Nodes[j].Address = localAddress(n)
		}
	}
	return c
}

// localAddress is the address of a machine by its spec, or else the one that it gets as a local machine.
func localAddress(n config.NodeName) netip.Addr {
	if n.Address.IsValid() {
		return n.Address
	}
	a := machine.DefaultSubnet().Addr()
	for range 10 + n.Index {
		a = a.Next()
	}
	return a
}

// Preflight finds everything that keeps this host from running a cluster of local machines. The host also needs tools to build
// components while the store lacks the release's, and more for machines that boot with systemd. With tests, it also
// checks for what Slipway's own tests need.
func Preflight(ctx context.Context, dir clusterdir.Dir, c clusterdir.Cluster, kind machine.InitKind, tests bool) ([]preflight.Finding, error) {
	_, complete, err := dir.Components().Lookup(ctx, c.Release)
	if err != nil {
		return nil, err
	}
	o := preflight.Options{Root: dir.Root, NeedBuild: !complete, Controls: len(c.Config.ControlPlanes()), Systemd: kind == machine.Systemd, Tests: tests}
	for _, p := range c.Config.Pools {
		o.Workers += len(p.Nodes)
	}
	o.Workers -= o.Controls
	if e, err := proxy.Find(dir.Proxy(c.Name)); err == nil && e.PID == 0 {
		o.APIPort = e.Addr.Port()
	}
	return preflight.Run(ctx, o), nil
}

// preflightHost refuses a host that cannot run the cluster. It installs missing packages and raises limits unless the options
// forbid that.
func preflightHost(ctx context.Context, inv inventory.Inventory, c clusterdir.Cluster, o UpOptions, to report.Func) error {
	findings, err := Preflight(ctx, inv.Dir, c, o.Init, false)
	if err != nil {
		return err
	}
	if len(preflight.Fixable(findings)) > 0 && !o.NoInstall {
		install := func(line string) { to(report.Event{Stage: report.StagePreflight, Phase: "install", Text: line}) }
		install(strings.Join(preflight.Fixable(findings), " "))
		if err := preflight.Install(ctx, findings, install); err != nil {
			return &report.Error{Kind: report.Preflight, Err: err}
		}
		if findings, err = Preflight(ctx, inv.Dir, c, o.Init, false); err != nil {
			return err
		}
	}
	for _, f := range findings {
		if f.Severity == preflight.Warning {
			to(report.Event{Stage: report.StagePreflight, Item: f.ID, Phase: string(f.Severity), Text: f.What})
		}
	}
	return problemsError(preflight.Problems(findings))
}

func problemsError(problems []preflight.Finding) error {
	if len(problems) == 0 {
		return nil
	}
	lines := []string{"this host has " + report.Count(len(problems), "problem") + "; nothing has been changed:"}
	for _, f := range problems {
		lines = append(lines, "  "+f.What)
		if f.Detail != "" {
			lines = append(lines, "    "+f.Detail)
		}
		if f.Remedy != "" {
			lines = append(lines, "    remedy: "+f.Remedy)
		}
	}
	return &report.Error{Kind: report.Preflight, Err: errors.New(strings.Join(lines, "\n"))}
}

// Down removes a cluster of local machines and everything that was made for it: processes, mounts, namespaces, cgroups, files.
// The component store is kept unless purge is set and no other cluster uses it. A cluster of existing machines is only
// forgotten, and only if no machine is in it any more.
func Down(ctx context.Context, inv inventory.Inventory, cluster string, purge bool, to report.Func) error {
	if remote, err := inv.IsRemote(cluster); err != nil || remote {
		return errors.Join(err, forgetRemote(ctx, inv, cluster, to))
	}
	machines, err := inv.Local(cluster, inv.Dir.Components().Runc(ctx))
	if err != nil {
		return err
	}
	unlock, err := inv.Dir.Lock(ctx, cluster, to)
	if err != nil {
		return err
	}
	defer unlock()
	if err := proxy.Stop(ctx, inv.Dir.Proxy(cluster)); err != nil {
		return fmt.Errorf("stop the API proxy: %w", err)
	}
	if err := machines.Local.Destroy(ctx, cluster); err != nil {
		return fmt.Errorf("remove the machines of %s: %w", cluster, err)
	}
	if err := inv.Dir.Forget(cluster); err != nil || !purge {
		return err
	}
	others, err := machines.Local.Clusters()
	if err != nil {
		return err
	}
	if len(others) > 0 {
		return fmt.Errorf("keep the component store: it is used by %s: remove these clusters first", strings.Join(others, ", "))
	}
	return inv.Dir.RemoveComponents()
}

// forgetRemote forgets a cluster of existing machines. The machines are not touched: each removes what Slipway has made on it
// when it is reset.
func forgetRemote(ctx context.Context, inv inventory.Inventory, cluster string, to report.Func) error {
	unlock, err := inv.Dir.Lock(ctx, cluster, to)
	if err != nil {
		return err
	}
	defer unlock()
	machines, list, err := inv.List(ctx, cluster)
	if err != nil {
		return err
	}
	var members []string
	for _, m := range list {
		if why := notFree(ctx, machines, m); why != "" {
			members = append(members, fmt.Sprintf("  %s: %s", m.Name, why))
		}
	}
	if len(members) > 0 {
		return fmt.Errorf("cluster %s consists of existing machines, which slipway does not delete:\n%s\nremove them first, workers before control planes: "+
			"slipway node remove NODE --name %s, then slipway node reset NODE --name %s; the last control plane with slipway node reset NODE --name %s --lost.\n"+
			"To forget the cluster on this computer only, and leave it running: remove %s",
			cluster, strings.Join(members, "\n"), cluster, cluster, cluster, inv.Dir.Path(cluster))
	}
	return inv.Dir.Forget(cluster)
}

// notFree says why a machine may still be in a cluster; empty if the machine says itself that it is in none.
func notFree(ctx context.Context, machines provider.Machines, m machine.Status) string {
	if m.Unreachable != "" {
		return "unknown: unreachable: " + m.Unreachable
	}
	limited, cancel := context.WithTimeout(ctx, agentclient.Timeout)
	defer cancel()
	agent, err := agentclient.Dial(provider.Agent(machines.Host(m.Name)))
	if err != nil {
		return err.Error()
	}
	defer agent.Close()
	i, err := agent.Info(limited)
	switch {
	case err != nil:
		return "unknown: its agent does not respond"
	case i.Phase != lock.Free:
		return fmt.Sprintf("%s (node %s)", i.Phase, i.Node)
	}
	return ""
}
