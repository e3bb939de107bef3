// SPDX-License-Identifier: Apache-2.0

// Package inventory finds the machines of the clusters of this host and opens them with the right provider: local machines,
// or machines over SSH for a cluster that has a record of such machines.
//
// Read [Inventory] first.
package inventory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	controlv1 "github.com/slipway-project/slipway/api/control/v1"
	"github.com/slipway-project/slipway/internal/agentclient"
	"github.com/slipway-project/slipway/internal/clusterdir"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/provider"
	"github.com/slipway-project/slipway/internal/provider/local"
	"github.com/slipway-project/slipway/internal/provider/ssh"
	"github.com/slipway-project/slipway/internal/sshhost"
)

// Inventory opens the machines of the clusters in a state directory. It holds no connections itself.
type Inventory struct {
	Dir clusterdir.Dir
	Exe string // this program, for local machines and the API proxy
	Log *slog.Logger
	SSH sshhost.Config // how existing machines are reached; Home and AgentSocket
}

// Local opens the local machines of a cluster, which need not exist. The runc that runs them is part of a bundle; without it
// nothing can be started.
func (i Inventory) Local(cluster, runc string) (local.Machines, error) {
	l, err := machine.New(machine.Config{Root: i.Dir.Root, Runc: runc, Log: i.Log})
	return local.Machines{Config: local.Config{Cluster: cluster, Local: l, Exe: i.Exe, Proxy: i.Dir.Proxy(cluster)}}, err
}

// IsRemote reports whether a cluster consists of existing machines, reached over SSH.
func (i Inventory) IsRemote(cluster string) (bool, error) {
	_, remote, err := ssh.LoadRecord(i.Dir, cluster)
	return remote, err
}

// Open opens the machines of a cluster, which need not exist. Connections end with ctx.
func (i Inventory) Open(ctx context.Context, cluster string) (provider.Machines, error) {
	record, remote, err := ssh.LoadRecord(i.Dir, cluster)
	if err != nil {
		return nil, err
	}
	if remote {
		return ssh.New(ctx, ssh.Config{Dir: i.Dir, Cluster: cluster, Record: record, SSH: i.SSH, Log: i.Log}), nil
	}
	return i.Local(cluster, i.Dir.Components().Runc(ctx))
}

// List opens and lists the machines of a cluster that exists, the first control plane first.
func (i Inventory) List(ctx context.Context, cluster string) (provider.Machines, []machine.Status, error) {
	if err := i.Dir.Check(cluster); err != nil {
		return nil, nil, err
	}
	machines, err := i.Open(ctx, cluster)
	if err != nil {
		return nil, nil, err
	}
	list, err := machines.List(ctx)
	if err != nil {
		return nil, nil, err
	}
	slices.SortFunc(list, func(a, b machine.Status) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), strings.Compare(a.Name, b.Name))
	})
	return machines, list, nil
}

// Names lists the names of a cluster's machines, in the order of List. It never connects to a machine.
func (i Inventory) Names(ctx context.Context, cluster string) (names []string, err error) {
	if r, remote, err := ssh.LoadRecord(i.Dir, cluster); err != nil || remote {
		for _, m := range r.Machines {
			names = append(names, m.Name)
		}
		return names, err
	}
	_, list, err := i.List(ctx, cluster)
	for _, m := range list {
		names = append(names, m.Name)
	}
	return names, err
}

// Machine finds one machine of a cluster; "" is the first.
func (i Inventory) Machine(ctx context.Context, cluster, name string) (provider.Machines, machine.Status, error) {
	machines, list, err := i.List(ctx, cluster)
	if err != nil {
		return nil, machine.Status{}, err
	}
	m, err := provider.Pick(cluster, list, name)
	return machines, m, err
}

// LocalMachine is Machine for what can be done only to local machines. For any other it fails with a [*NotLocalError].
func (i Inventory) LocalMachine(ctx context.Context, cluster, name string) (*machine.Local, machine.Status, error) {
	machines, m, err := i.Machine(ctx, cluster, name)
	if err != nil {
		return nil, m, err
	}
	switch machines := machines.(type) {
	case local.Machines:
		return machines.Local, m, nil
	case *ssh.Machines:
		return nil, m, &NotLocalError{m.Name, machines.Target(m.Name)}
	}
	return nil, m, fmt.Errorf("machine %s is not on this host", m.Name)
}

// NotLocalError means that a machine is not one that Slipway runs on this host. It says how to log in to it.
type NotLocalError struct {
	Machine string
	SSH     sshhost.Target
}

func (e *NotLocalError) Error() string {
	return fmt.Sprintf("machine %s is not on this host: log in to it yourself: %s", e.Machine, e.SSH.CommandLine(false))
}

// Targets are the agents of a cluster's running machines, those of control planes first. If this host has no such cluster but
// is itself a machine of one, its own agent is the only target.
func (i Inventory) Targets(ctx context.Context, cluster string) ([]agentclient.Target, error) {
	machines, list, err := i.List(ctx, cluster)
	if errors.Is(err, clusterdir.ErrNoCluster) && agentclient.IsSocket(agentclient.OwnSocket) {
		return []agentclient.Target{agentclient.Own()}, nil
	}
	if err != nil {
		return nil, err
	}
	if _, err := provider.Pick(cluster, list, ""); err != nil {
		return nil, err
	}
	controlPlanes := map[string]bool{} // only an order in which to ask, so a spec that cannot be read does not matter
	if c, err := i.Dir.Load(clusterdir.Source{Name: cluster}); err == nil {
		for _, p := range c.Config.Pools {
			for _, n := range p.Nodes {
				controlPlanes[n.Name] = p.Has(config.RoleControlPlane)
			}
		}
	}
	var first, rest []agentclient.Target
	for _, m := range list {
		switch t := (agentclient.Target{Machine: m.Name, Dial: provider.Agent(machines.Host(m.Name))}); {
		case !m.Running:
		case controlPlanes[m.Name]:
			first = append(first, t)
		default:
			rest = append(rest, t)
		}
	}
	if targets := append(first, rest...); len(targets) > 0 {
		return targets, nil
	}
	if u := slices.IndexFunc(list, func(m machine.Status) bool { return m.Unreachable != "" }); u >= 0 {
		return nil, provider.NotRunning(cluster, list[u])
	}
	return nil, fmt.Errorf("cluster %s: no machine is running: start them with slipway up --name %s", cluster, cluster)
}

// Named are the targets of the named machines, or of all machines of a cluster. A machine that is not running has no Dial.
func (i Inventory) Named(ctx context.Context, cluster string, names []string) (out []agentclient.Target, err error) {
	machines, list, err := i.List(ctx, cluster)
	if errors.Is(err, clusterdir.ErrNoCluster) && agentclient.IsSocket(agentclient.OwnSocket) {
		for _, name := range names {
			if !isThisHost(name) {
				return nil, fmt.Errorf("machine %s is not this one: run the command there", name)
			}
		}
		return []agentclient.Target{agentclient.Own()}, nil
	}
	if err != nil {
		return nil, err
	}
	for _, name := range append([]string{""}, names...) { // "" checks that there is a machine at all
		if _, err := provider.Pick(cluster, list, name); err != nil {
			return nil, err
		}
	}
	for _, m := range list {
		switch {
		case len(names) > 0 && !slices.Contains(names, m.Name):
		case m.Running:
			out = append(out, agentclient.Target{Machine: m.Name, Dial: provider.Agent(machines.Host(m.Name))})
		default:
			out = append(out, agentclient.Target{Machine: m.Name})
		}
	}
	return out, nil
}

// AskControl asks the control planes of a cluster, as [agentclient.AskControl] does.
func (i Inventory) AskControl(ctx context.Context, cluster string, ask func(ctx context.Context, c controlv1.ControlClient) error) error {
	targets, err := i.Targets(ctx, cluster)
	if err != nil {
		return err
	}
	return agentclient.AskControl(ctx, targets, ask)
}

// AskMachine asks the agent of one machine, which must be running.
func (i Inventory) AskMachine(ctx context.Context, cluster, name string, ask func(ctx context.Context, a *agentclient.Agent) error) error {
	machines, m, err := i.Machine(ctx, cluster, name)
	switch {
	case errors.Is(err, clusterdir.ErrNoCluster) && agentclient.IsSocket(agentclient.OwnSocket) && isThisHost(name):
		return agentclient.Target{Machine: name, Dial: agentclient.Socket(agentclient.OwnSocket)}.With(ctx, ask)
	case err != nil:
		return err
	case !m.Running:
		return provider.NotRunning(cluster, m)
	}
	return agentclient.Target{Machine: m.Name, Dial: provider.Agent(machines.Host(m.Name))}.With(ctx, ask)
}

func isThisHost(name string) bool {
	host, err := os.Hostname()
	return err == nil && host == name
}
