// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/agentclient"
	"github.com/slipway-project/slipway/internal/artifact"
	"github.com/slipway-project/slipway/internal/bundle"
	"github.com/slipway-project/slipway/internal/clusterdir"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/spec"
	"github.com/slipway-project/slipway/internal/inventory"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/provider"
	"github.com/slipway-project/slipway/internal/provider/ssh"
	"github.com/slipway-project/slipway/internal/report"
	"github.com/slipway-project/slipway/internal/sshhost"
)

// ApplyOptions are the options of one Apply.
type ApplyOptions struct {
	Source            clusterdir.Source
	Version           string        // of this slipway, for Confirm
	AcceptNewHostKeys bool          // write unknown host keys to known_hosts
	Wait              time.Duration // how long to wait for the cluster; 0: do not wait
	Report            report.Func
	// Confirm is shown what would be done, if there is anything. Its error is returned, and nothing is done.
	Confirm func(ApplyPlan) error
}

// ApplyPlan is what an apply would do.
type ApplyPlan struct {
	Cluster  string         `json:"cluster"`
	Release  string         `json:"release"`
	Machines []ApplyMachine `json:"machines"`
}

// None reports whether there is nothing to do.
func (p ApplyPlan) None() bool {
	return !slices.ContainsFunc(p.Machines, func(m ApplyMachine) bool { return len(m.Do) > 0 })
}

// ApplyMachine is what an apply would do with one machine.
type ApplyMachine struct {
	Name    string   `json:"name"`
	Address string   `json:"address"`
	Roles   []string `json:"roles"`
	Do      []string `json:"do"`              // for people, in order; empty: the machine is as the spec says
	Steps   []Change `json:"steps,omitempty"` // of a machine that is in the cluster
}

// Apply creates a cluster of existing machines, or brings it to its spec. All machines are examined before anything is changed
// on any. It may be interrupted at any moment and run again: it continues.
func Apply(ctx context.Context, inv inventory.Inventory, o ApplyOptions) (Result, error) {
	ctx, cancel := context.WithCancel(ctx) // connections end with the command
	defer cancel()
	t := newTracker(o.Report, o.Wait)
	cluster, err := inv.Dir.Load(o.Source)
	if err != nil {
		return t.result, err
	}
	t.begin(cluster)
	listed, err := listedMachines(inv, cluster, o.Source.File)
	if err != nil {
		return t.result, err
	}
	components := inv.Dir.Components()
	built, complete, err := components.Lookup(ctx, cluster.Release)
	if err != nil {
		return t.result, err
	}
	if !complete {
		return t.result, &report.Error{Kind: report.Preflight, Err: fmt.Errorf("the component store of this computer (%s) does not have Kubernetes %s: run slipway bundle build, or slipway bundle import",
			components.Dir, cluster.Release.Kubernetes)}
	}
	store, err := components.Open()
	if err != nil {
		return t.result, err
	}
	upload, err := ssh.NewUpload(ctx, inv.Exe, store, t.report)
	if err != nil {
		return t.result, err
	}
	e := newEngine(inv, cluster, bundle.Digests(built), t)
	if err := e.lock.acquire(ctx); err != nil {
		return t.result, err
	}
	defer e.lock.release()
	record, _, err := ssh.LoadRecord(inv.Dir, cluster.Name) // under the lock: another apply may just have written it
	if err != nil {
		return t.result, err
	}
	access := inv.SSH
	access.AcceptNew = o.AcceptNewHostKeys
	machines := ssh.New(ctx, ssh.Config{
		Dir: inv.Dir, Cluster: cluster.Name, Record: record, SSH: access, Log: inv.Log, Spec: listed, Upload: upload,
	})
	e.machines = machines
	probes, err := machines.Probe(ctx, cluster.Config.Pools, t.report)
	if err != nil {
		return t.result, err
	}
	if e.existing, err = machines.List(ctx); err != nil {
		return t.result, err
	}
	if err := e.checkSpec(); err != nil {
		return t.result, err
	}
	p, err := (&applyPlanner{e, machines, upload, built, o.Version}).planAll(ctx, probes)
	if err != nil {
		return t.result, err
	}
	if !p.None() && o.Confirm != nil {
		if err := o.Confirm(p); err != nil {
			return t.result, err
		}
	}
	return t.finish(ctx, e.converge(ctx))
}

// listedMachines are the machines that the spec lists. A spec without them, or for a cluster of local machines, is refused.
func listedMachines(inv inventory.Inventory, c clusterdir.Cluster, file string) ([]ssh.Machine, error) {
	if inv.Dir.HasLocalMachines(c.Name) {
		return nil, fmt.Errorf("cluster %s consists of machines on this host: bring it to its spec with slipway up --name %s, or choose another name for other machines", c.Name, c.Name)
	}
	parsed, _ := spec.Parse(file, c.Spec, spec.Options{Name: c.Name}) // Load has found no problem
	var out []ssh.Machine
	for i, p := range parsed.Pools {
		if len(p.Machines) == 0 {
			return nil, invalid("%s: spec.pools[%d]: pool %s lists no machines: list existing machines with their addresses; slipway up creates local ones",
				parsed.Where(spec.Element("spec.pools", i)), i, p.Name)
		}
		for _, m := range p.Machines {
			out = append(out, ssh.Machine{Name: m.Name, Address: m.Address, SSH: sshhost.Target{
				Name: m.Name, Host: m.Address.String(), User: m.SSH.User, Port: m.SSH.Port, IdentityFile: m.SSH.IdentityFile, HostKey: m.SSH.HostKey,
				Jump: sshhost.Jump(m.SSH.Jump),
			}})
		}
	}
	if len(out) == 0 {
		return nil, invalid("%s: spec.pools is missing: list existing machines with their addresses; slipway up creates local ones", parsed.File)
	}
	return out, nil
}

// applyPlanner finds out what an apply would do, and tells the upload what each machine needs.
type applyPlanner struct {
	*engine
	ssh     *ssh.Machines
	upload  *ssh.Upload
	built   artifact.Bundle
	version string
}

func (a *applyPlanner) planAll(ctx context.Context, probes []*ssh.Probe) (ApplyPlan, error) {
	out := ApplyPlan{Cluster: a.cluster.Name, Release: a.cluster.Release.Kubernetes, Machines: make([]ApplyMachine, len(probes))}
	all, err := a.probed(probes)
	if err != nil {
		return out, err
	}
	defer all.close()
	a.phases = map[string]lock.Phase{}
	for _, t := range all {
		a.phases[t.Name] = t.Phase
	}
	first, err := all.bootstrapNode()
	if err != nil {
		return out, err
	}
	group, planning := errgroup.WithContext(ctx)
	for i, t := range all {
		group.Go(func() error {
			m, err := a.planMachine(planning, all, t, probes[i])
			if t == first && t.Phase == lock.Free {
				m.Do = append(m.Do, "creates the cluster")
			} else if t.Phase == lock.Free {
				m.Do = append(m.Do, "joins as "+strings.Join(t.pool.Roles, " and "))
			}
			out.Machines[i] = m
			return err
		})
	}
	return out, group.Wait()
}

// probed are the machines as the probes have found them. An agent is connected to only where the machine is not free; it need
// not answer.
func (a *applyPlanner) probed(probes []*ssh.Probe) (targets, error) {
	all := specTargets(a.cluster.Config) // in the order of the probes, with the indexes that are kept
	for i, t := range all {
		r := probes[i].Report
		t.Membership = agentclient.Membership{Phase: lock.Phase(r.Lock), Cluster: r.Cluster, Node: r.Node}
		if t.facts = r.Facts; !t.facts.Address.IsValid() {
			t.facts.Address = t.Address
		}
		if t.Phase == lock.Free {
			continue
		}
		var err error
		if t.agent, err = agentclient.Dial(provider.Agent(a.machines.Host(t.Name))); err != nil {
			all.close()
			return nil, err
		}
	}
	return all, nil
}

func (a *applyPlanner) planMachine(ctx context.Context, all targets, t *target, p *ssh.Probe) (ApplyMachine, error) {
	m := ApplyMachine{Name: t.Name, Address: t.Address.String(), Roles: t.pool.Roles, Do: []string{}}
	planned, err := all.plan(a.cluster.Config, t.Name, a.components)
	if err != nil {
		return m, err
	}
	a.upload.SetParts(t.Name, neededParts(planned.plan, a.built))
	missing, err := a.ssh.Missing(ctx, t.Name)
	if err != nil {
		return m, fmt.Errorf("machine %s: %w", t.Name, err)
	}
	if p.Replaces {
		m.Do = append(m.Do, "gets slipway "+a.version)
	} else if p.Outdated {
		m.Do = append(m.Do, "restarts its agent, which runs an earlier program or unit")
	}
	if len(missing) > 0 {
		var size int64
		for _, b := range missing {
			size += b.Size
		}
		m.Do = append(m.Do, fmt.Sprintf("gets %s (%d MiB)", report.Count(len(missing), "component"), size>>20))
	}
	if t.Phase != lock.Committed {
		return m, nil
	}
	return m, a.planChanges(ctx, all, t, &m)
}

// statusLimit decides whether an agent is restarted, so it allows for one that is only slow.
const statusLimit = 10 * time.Second

// planChanges asks a machine of the cluster what its new plan would change.
func (a *applyPlanner) planChanges(ctx context.Context, all targets, t *target, m *ApplyMachine) error {
	limited, cancel := context.WithTimeout(ctx, statusLimit)
	defer cancel()
	status, err := t.agent.Status(limited)
	if err != nil {
		m.Do = append(m.Do, "starts its agent, which does not respond")
		return nil
	}
	if status.Cluster != "" && status.Cluster != a.cluster.Name {
		return fmt.Errorf("machine %s is a node of cluster %s: remove it from that cluster first: slipway node remove, then slipway node reset there", t.Name, status.Cluster)
	}
	if err := t.refresh(ctx); err != nil {
		return fmt.Errorf("machine %s: %w", t.Name, err)
	}
	d, err := all.diff(ctx, a.cluster.Config, t, a.components)
	if err != nil {
		return fmt.Errorf("machine %s: compare with its plan: %w", t.Name, err)
	}
	m.Steps = append(d.Steps, d.Unknown...)
	if len(m.Steps) > 0 {
		m.Do = append(m.Do, "changes "+report.Count(len(m.Steps), "item"))
	}
	return nil
}

// neededParts are the files of the release that a plan needs.
func neededParts(p plan.Plan, built artifact.Bundle) []artifact.Blob {
	needed := map[string]bool{}
	for _, e := range p.Entries {
		if f, ok := e.Item.(plan.Artifact); ok {
			needed[f.Digest] = true
		}
	}
	var out []artifact.Blob
	for _, list := range []map[string]artifact.Blob{built.Binaries, built.Images} {
		for _, b := range list {
			if needed[b.Digest.String()] {
				out = append(out, b)
			}
		}
	}
	slices.SortFunc(out, func(x, y artifact.Blob) int { return strings.Compare(x.Digest.String(), y.Digest.String()) })
	return slices.Compact(out)
}
