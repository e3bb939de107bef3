// SPDX-License-Identifier: Apache-2.0

package operate

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/slipway-project/slipway/internal/agentclient"
	"github.com/slipway-project/slipway/internal/inventory"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/provider"
	"github.com/slipway-project/slipway/internal/reconcile"
	"github.com/slipway-project/slipway/internal/report"
	"github.com/slipway-project/slipway/internal/trace"
)

// ClusterStatus is the current state of a cluster. It is ready when every machine is running, every agent answers, and every
// item of every plan is ready. What is unknown is not ready.
type ClusterStatus struct {
	Cluster  string          `json:"cluster"`
	Release  string          `json:"release,omitempty"` // empty while no agent reports it
	Ready    bool            `json:"ready"`
	Verdict  string          `json:"verdict"`
	Machines []MachineStatus `json:"machines"`
}

// MachineStatus is one machine and what its agent reports.
type MachineStatus struct {
	machine.Status
	AgentVersion string                  `json:"agentVersion,omitempty"`
	AgentError   string                  `json:"agentError,omitempty"` // why the agent reports nothing
	Node         *agentclient.NodeStatus `json:"node,omitempty"`       // nil while the agent reports nothing
}

// Status returns the state of a cluster. It works while machines are down and agents do not answer, and changes nothing.
func Status(ctx context.Context, inv inventory.Inventory, cluster string) (ClusterStatus, error) {
	machines, list, err := inv.List(ctx, cluster)
	if err != nil {
		return ClusterStatus{}, err
	}
	s := ClusterStatus{Cluster: cluster, Machines: make([]MachineStatus, len(list))}
	var asking sync.WaitGroup
	for i, m := range list {
		s.Machines[i] = MachineStatus{Status: m}
		if m.Running {
			asking.Go(func() { s.Machines[i].ask(ctx, provider.Agent(machines.Host(m.Name))) })
		}
	}
	asking.Wait()
	if ctx.Err() != nil {
		return ClusterStatus{}, ctx.Err()
	}
	s.judge()
	return s, nil
}

// ask fills in what the agent reports, or why it does not.
func (m *MachineStatus) ask(ctx context.Context, dial agentclient.Dialer) {
	patient, cancel := context.WithTimeout(ctx, agentclient.Patience)
	defer cancel()
	err := func() error {
		agent, err := agentclient.Dial(dial)
		if err != nil {
			return err
		}
		defer agent.Close()
		info, err := agent.Addressed(patient)
		if err != nil {
			return err
		}
		node, err := agent.Status(patient)
		if err == nil {
			m.AgentVersion, m.Node = info.Version, &node
		}
		return err
	}()
	if err == nil {
		return
	}
	m.AgentError = err.Error()
	if patient.Err() == nil {
		return
	}
	conn, err := dial(ctx) // distinguishes an agent that is down from one that hangs
	if err != nil {
		m.AgentError = err.Error()
		return
	}
	conn.Close()
	m.AgentError = fmt.Sprintf("it accepts connections but has not answered for %s", agentclient.Patience)
}

// judge sets the verdict, one line that states the worst problem.
func (s *ClusterStatus) judge() {
	total, unready := 0, 0
	for _, m := range s.Machines {
		if m.Node != nil {
			if m.Node.Release != "" {
				s.Release = m.Node.Release
			}
			total += len(m.Node.Items)
			unready += len(m.Node.Unready())
		}
	}
	s.Verdict = s.problem(total, unready)
	s.Ready = s.Verdict == ""
	if s.Ready {
		s.Verdict = fmt.Sprintf("cluster %s is ready: Kubernetes %s, %s", s.Cluster, s.Release, report.Count(len(s.Machines), "machine"))
	}
}

func (s *ClusterStatus) problem(total, unready int) string {
	if len(s.Machines) == 0 {
		return fmt.Sprintf("cluster %s has no machines yet: run slipway up --name %s", s.Cluster, s.Cluster)
	}
	for _, m := range s.Machines {
		if m.Unreachable != "" {
			return fmt.Sprintf("cluster %s: state unknown: machine %s is unreachable: %s", s.Cluster, m.Name, m.Unreachable)
		}
		if !m.Running && slices.ContainsFunc(s.Machines, func(m MachineStatus) bool { return m.Running }) {
			return fmt.Sprintf("cluster %s is degraded: machine %s is not running: start it with slipway machine start %s --name %s", s.Cluster, m.Name, m.Name, s.Cluster)
		}
		if !m.Running {
			return fmt.Sprintf("cluster %s is down: machine %s is not running: start it with slipway up --name %s", s.Cluster, m.Name, s.Cluster)
		}
	}
	for _, m := range s.Machines {
		switch {
		case m.Node == nil:
			return fmt.Sprintf("cluster %s: state unknown: the agent of %s does not answer (components that it started are not affected): see slipway logs --name %s agent --machine %s",
				s.Cluster, m.Name, s.Cluster, m.Name)
		case len(m.Node.Items) == 0:
			return fmt.Sprintf("cluster %s is not ready: %s has no plan yet: run slipway up --name %s", s.Cluster, m.Name, s.Cluster)
		}
	}
	if unready > 0 {
		return fmt.Sprintf("cluster %s is not ready: %d of %s not ready", s.Cluster, unready, report.Count(total, "item"))
	}
	return ""
}

// Items returns the status of the items of one node, in the order of its plan.
func Items(ctx context.Context, inv inventory.Inventory, cluster, node string) ([]reconcile.Status, error) {
	s, err := Status(ctx, inv, cluster)
	if err != nil {
		return nil, err
	}
	for _, m := range s.Machines {
		switch {
		case m.Name != node:
		case m.Node != nil:
			return m.Node.Items, nil
		case !m.Running:
			return nil, provider.NotRunning(cluster, m.Status)
		default:
			return nil, fmt.Errorf("agent of %s: %s", node, m.AgentError)
		}
	}
	return nil, fmt.Errorf("machine %s does not exist yet", node)
}

// Trace returns the spans of the last convergence of a machine, the first one if none is named.
func Trace(ctx context.Context, inv inventory.Inventory, cluster, name string) ([]trace.Span, error) {
	machines, m, err := inv.Machine(ctx, cluster, name)
	if err != nil {
		return nil, err
	}
	if !m.Running {
		return nil, provider.NotRunning(cluster, m)
	}
	ctx, cancel := context.WithTimeout(ctx, agentclient.Patience)
	defer cancel()
	agent, err := agentclient.Dial(provider.Agent(machines.Host(m.Name)))
	if err != nil {
		return nil, err
	}
	defer agent.Close()
	return agent.Trace(ctx)
}
