// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/pin"
)

// member is one machine of the cluster while up works on it.
type member struct {
	config.NodeName
	pool  config.Pool
	agent *Agent
	facts machine.Facts
	enrolment
}

// enrolment is what a machine's agent says of the machine's place.
type enrolment struct {
	key     pin.Pin // pin of the machine's key
	phase   string  // free, claimed or committed
	cluster string  // id, when committed
	node    string  // its name there
}

func (m member) controls() bool { return m.pool.Has(config.RoleControlPlane) }

// fleet is all machines of the cluster, in the order of the spec.
type fleet []*member

func (f fleet) close() {
	for _, m := range f {
		if m.agent != nil {
			m.agent.Close()
		}
	}
}

// settle gives every node the share of the pod range that its machine has had before.
func (u *up) settle(ctx context.Context, machines provider) error {
	var err error
	if u.machines, err = machines.List(ctx); err != nil {
		return err
	}
	u.cluster.Config = keeping(u.cluster.Config, u.machines)
	return nil
}

// raise makes every machine run and asks each agent what it is.
func (u *up) raise(ctx context.Context, machines provider) (fleet, error) {
	var all fleet
	for _, p := range u.cluster.Config.Pools {
		for _, n := range p.Nodes {
			all = append(all, &member{NodeName: n, pool: p, enrolment: enrolment{phase: cmp.Or(u.phases[n.Name], freePhase)}})
		}
	}
	if err := u.prepareFounder(ctx, machines, all); err != nil {
		return nil, err
	}
	boots, limited := errgroup.WithContext(ctx)
	boots.SetLimit(4)
	for _, m := range all {
		boots.Go(func() error { return u.machine(limited, machines, m.NodeName) })
	}
	if err := boots.Wait(); err != nil {
		return nil, err
	}
	if u.o.Wait > 0 && u.deadline.IsZero() {
		u.deadline = time.Now().Add(u.o.Wait)
	}
	asks, asking := errgroup.WithContext(ctx)
	for _, m := range all {
		asks.Go(func() error { return u.meet(asking, machines, m) })
	}
	if err := asks.Wait(); err != nil {
		all.close()
		return nil, err
	}
	return all, nil
}

// meet opens the way to a machine's agent and asks it what the machine is.
func (u *up) meet(ctx context.Context, machines provider, m *member) error {
	begun := time.Now()
	limited, cancel := context.WithTimeout(ctx, u.handOverLimit())
	defer cancel()
	agent, err := agentAt(machines.At(m.Name))
	if err != nil {
		return err
	}
	m.agent = agent
	if m.facts, m.enrolment, err = agent.Meet(limited); err != nil {
		return u.silent(limited, m.Name, begun, err)
	}
	if !m.Address.IsValid() {
		m.Address = m.facts.Address
	}
	if m.phase == committedPhase && m.node != m.Name {
		return fmt.Errorf("machine %s is node %s of a cluster: slipway down --name %s, or slipway node reset %s", m.Name, m.node, u.cluster.Name, m.Name)
	}
	return nil
}

const (
	freePhase      = "free"
	committedPhase = "committed"
)

// machine makes it exist and run.
func (u *up) machine(ctx context.Context, machines provider, n config.NodeName) error {
	change, err := machines.Ensure(ctx, n)
	if err != nil {
		return fmt.Errorf("machine %s: %w", n.Name, err)
	}
	u.mu.Lock()
	u.result.Changed = u.result.Changed || !change.None()
	u.mu.Unlock()
	u.report(Event{Stage: StageMachine, Machine: n.Name, Phase: "ready", Text: machineText(change)})
	return nil
}

// cluster is the id of the cluster that the machines are in; empty while there is none. Machines of two clusters are an error.
func (f fleet) cluster() (id string, err error) {
	first := ""
	for _, m := range f {
		switch {
		case m.phase != committedPhase:
		case id == "":
			id, first = m.enrolment.cluster, m.Name
		case id != m.enrolment.cluster:
			return "", fmt.Errorf("machine %s is in cluster %s, and %s in %s: reset one of them (slipway node reset)", first, id, m.Name, m.enrolment.cluster)
		}
	}
	if id == "" {
		return "", nil
	}
	for _, m := range f {
		if m.phase == committedPhase && m.controls() {
			return id, nil
		}
	}
	return "", fmt.Errorf("cluster %s has lost its control planes: machine %s is in it, and no control plane of the spec is", id, first)
}

// founder is the control plane that makes the cluster: the one that has begun, or else the first.
func (f fleet) founder() (*member, error) {
	var first *member
	for _, m := range f {
		if !m.controls() {
			continue
		}
		if m.phase != freePhase {
			return m, nil
		}
		if first == nil {
			first = m
		}
	}
	if first == nil {
		return nil, &Error{InvalidSpec, errors.New("spec.pools: no machine has the role control-plane")}
	}
	return first, nil
}

// records are what the cluster is to know of its machines, whether they have joined or not.
func (f fleet) records(c config.Cluster) ([]admission.Node, error) {
	out := make([]admission.Node, 0, len(f))
	for _, m := range f {
		podCIDR, err := c.NodePodCIDR(m.Index)
		if err != nil {
			return nil, err
		}
		out = append(out, admission.Node{
			Name: m.Name, Pool: m.pool.Name, Index: m.Index, PodCIDR: podCIDR, Address: m.address(), Key: m.key,
			Facts: m.facts,
		})
	}
	return out, nil
}

func (m member) address() netip.Addr {
	if m.Address.IsValid() {
		return m.Address
	}
	return m.facts.Address
}
