// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/slipway-project/slipway/internal/agentclient"
	"github.com/slipway-project/slipway/internal/clusterdir"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/compose"
	"github.com/slipway-project/slipway/internal/core/config"
	coremachine "github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/planner"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/report"
)

// target is one machine of the spec and what is known of it.
type target struct {
	config.NodeName
	agentclient.Membership
	pool  config.Pool
	facts coremachine.Facts
	agent *agentclient.Agent // nil while it has not been connected to
}

func (t *target) isControlPlane() bool { return t.pool.Has(config.RoleControlPlane) }

// address is the one from the spec, or else the one that the machine reports.
func (t *target) address() netip.Addr {
	if t.Address.IsValid() {
		return t.Address
	}
	return t.facts.Address
}

// refresh asks the agent what the machine is and which cluster it belongs to.
func (t *target) refresh(ctx context.Context) error {
	i, err := t.agent.Addressed(ctx)
	if err == nil {
		t.facts, t.Membership = i.Facts, i.Membership
	}
	return err
}

// isCommitted asks the agent whether the machine belongs to a cluster now.
func (t *target) isCommitted(ctx context.Context) bool {
	i, err := t.agent.Info(ctx)
	return err == nil && i.Phase == lock.Committed
}

// targets are all machines of the spec, in its order.
type targets []*target

// specTargets lists the machines of a spec, of which nothing is known yet.
func specTargets(c config.Cluster) (all targets) {
	for _, p := range c.Pools {
		for _, n := range p.Nodes {
			all = append(all, &target{NodeName: n, pool: p, Membership: agentclient.Membership{Phase: lock.Free}})
		}
	}
	return all
}

// close closes the connections to agents.
func (all targets) close() {
	for _, t := range all {
		if t.agent != nil {
			t.agent.Close()
		}
	}
}

// clusterID is the id of the cluster that the machines belong to; empty while there is none. It is an error if they belong to
// different clusters, or if only workers belong to one.
func (all targets) clusterID() (id string, err error) {
	first, hasControlPlane := "", false
	for _, t := range all {
		if t.Phase != lock.Committed {
			continue
		}
		if id == "" {
			id, first = t.Cluster, t.Name
		}
		if id != t.Cluster {
			return "", fmt.Errorf("machine %s is in cluster %s, and %s in %s: reset one of them (slipway node reset)", first, id, t.Name, t.Cluster)
		}
		hasControlPlane = hasControlPlane || t.isControlPlane()
	}
	if id != "" && !hasControlPlane {
		return "", fmt.Errorf("cluster %s has lost its control planes: machine %s is in it, but no control plane of the spec is", id, first)
	}
	return id, nil
}

// bootstrapNode is the control plane that creates the cluster: the one that has begun to, or else the first.
func (all targets) bootstrapNode() (*target, error) {
	var first *target
	for _, t := range all {
		if !t.isControlPlane() {
			continue
		}
		if t.Phase != lock.Free {
			return t, nil
		}
		if first == nil {
			first = t
		}
	}
	if first == nil {
		return nil, invalid("spec.pools: no machine has the role control-plane")
	}
	return first, nil
}

// joinEndpoints are the join services of the control planes other than of itself.
func (all targets) joinEndpoints(of *target) (endpoints []string) {
	for _, t := range all {
		if t.isControlPlane() && t != of {
			endpoints = append(endpoints, net.JoinHostPort(t.address().String(), fmt.Sprint(config.JoinPort)))
		}
	}
	return endpoints
}

// records are what the cluster knows of its machines, whether they have joined yet or not.
func (all targets) records(c config.Cluster) ([]admission.Node, error) {
	out := make([]admission.Node, 0, len(all))
	for _, t := range all {
		podCIDR, err := c.NodePodCIDR(t.Index)
		if err != nil {
			return nil, err
		}
		out = append(out, admission.Node{
			Name: t.Name, Pool: t.pool.Name, Index: t.Index, PodCIDR: podCIDR, Address: t.address(), Key: t.Key,
			Facts: t.facts,
		})
	}
	return out, nil
}

// nodePlan is what one machine is given: its configuration, its plan, and, on a control plane, the control document.
type nodePlan struct {
	node    config.Node
	plan    plan.Plan
	control []byte
}

// plan plans for one of the machines.
func (all targets) plan(c config.Cluster, name string, components planner.Components) (p nodePlan, err error) {
	records, err := all.records(c)
	if err != nil {
		return p, err
	}
	i := slices.IndexFunc(all, func(t *target) bool { return t.Name == name })
	if i < 0 {
		return p, fmt.Errorf("plan %s: no such machine in the spec", name)
	}
	if p.node, p.plan, err = compose.Node(c, records[i], components); err != nil || !all[i].isControlPlane() {
		return p, err
	}
	for _, r := range records { // refuse now what could not be planned when the machine joins
		if _, err := compose.Configure(c, r); err != nil {
			return p, err
		}
	}
	p.control, err = controlDocument(c, name, records, components)
	return p, err
}

// ticket is what makes a machine the first control plane of a new cluster: its plan and the permits that only this machine has.
func (p nodePlan) ticket() plan.Ticket {
	return plan.Ticket{Version: plan.Version, Plan: p.plan, Control: p.control, Files: []plan.TicketFile{
		{Path: config.CreatePermit, Mode: 0o600, Content: []byte("made by init\n")},
		{Path: config.EtcdPermit, Mode: 0o600, Content: planner.EtcdPermit(p.node)},
		{Path: config.EtcdVoter, Mode: 0o600, Content: []byte("made by init\n")},
	}}
}

// clusterLock is the cluster's lock on this host, as one run uses it. It is released while the run only waits. Another run may
// then remove the cluster or store another spec; afterwards there is nothing left for this run to do.
type clusterLock struct {
	dir     clusterdir.Dir
	cluster clusterdir.Cluster
	report  report.Func
	stored  bool   // this run has stored its spec
	unlock  func() // nil while the lock is not held
}

// acquire takes the lock unless it is held already. It fails when another run has changed the cluster meanwhile.
func (l *clusterLock) acquire(ctx context.Context) error {
	if l.unlock != nil {
		return nil
	}
	unlock, err := l.dir.Lock(ctx, l.cluster.Name, l.report)
	if err != nil {
		return err
	}
	l.unlock = unlock
	return l.unchanged()
}

func (l *clusterLock) release() {
	if l.unlock != nil {
		l.unlock()
		l.unlock = nil
	}
}

// store stores this run's spec. The lock must be held.
func (l *clusterLock) store() error {
	l.stored = true
	return l.dir.Store(l.cluster)
}

// unchanged is an error when the spec that this run has stored is no longer the cluster's.
func (l *clusterLock) unchanged() error {
	if !l.stored {
		return nil
	}
	text, err := os.ReadFile(l.dir.Spec(l.cluster.Name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("cluster %s was removed meanwhile", l.cluster.Name)
	case err != nil:
		return fmt.Errorf("read the stored spec: %w", err)
	case !bytes.Equal(text, l.cluster.Spec):
		return fmt.Errorf("another slipway up has given cluster %s another spec meanwhile: see slipway status --name %s", l.cluster.Name, l.cluster.Name)
	}
	return nil
}
