// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// Status is what can be seen of a cluster now. It is ready when every machine runs, every agent answers, and every item of
// every plan is ready: what is not known is not ready.
type Status struct {
	Cluster  string          `json:"cluster"`
	Release  string          `json:"release,omitempty"` // empty while no agent says it
	Ready    bool            `json:"ready"`
	Verdict  string          `json:"verdict"`
	Machines []MachineStatus `json:"machines"`
}

// MachineStatus is one machine and what its agent says.
type MachineStatus struct {
	machine.Status
	AgentVersion string      `json:"agentVersion,omitempty"`
	AgentError   string      `json:"agentError,omitempty"` // why the agent says nothing
	Node         *NodeStatus `json:"node,omitempty"`       // nil while the agent says nothing
}

// agentPatience is for an agent that its machine's PID 1 is just starting again.
const agentPatience = 2 * time.Second

// Status looks at a cluster without changing anything. It works when machines are down and agents are dead.
func (l *Launcher) Status(ctx context.Context, name string) (Status, error) {
	machines, list, err := l.machinesOf(ctx, name)
	if err != nil {
		return Status{}, err
	}
	s := Status{Cluster: name, Machines: make([]MachineStatus, len(list))}
	var asking sync.WaitGroup
	for i, m := range list {
		s.Machines[i] = MachineStatus{Status: m}
		if m.Running {
			asking.Go(func() { ask(ctx, toAgent(machines.At(m.Name)), &s.Machines[i]) })
		}
	}
	asking.Wait()
	if ctx.Err() != nil {
		return Status{}, ctx.Err()
	}
	s.judge()
	return s, nil
}

func ask(ctx context.Context, dial dialer, m *MachineStatus) {
	patient, cancel := context.WithTimeout(ctx, agentPatience)
	defer cancel()
	err := askAll(patient, dial, m)
	if err == nil {
		return
	}
	m.AgentError = err.Error()
	if patient.Err() == nil {
		return
	}
	conn, err := dial(ctx) // tells a dead agent from one that hangs
	if err != nil {
		m.AgentError = err.Error()
		return
	}
	conn.Close()
	m.AgentError = fmt.Sprintf("it takes connections, and is silent for %s", agentPatience)
}

func askAll(ctx context.Context, dial dialer, m *MachineStatus) error {
	agent, err := dialAgent(dial)
	if err != nil {
		return err
	}
	defer agent.Close()
	_, version, err := agent.Facts(ctx)
	if err != nil {
		return err
	}
	node, err := agent.Status(ctx)
	if err != nil {
		return err
	}
	m.AgentVersion, m.Node = version, &node
	return nil
}

// judge says in one line how the cluster is; the worst comes first.
func (s *Status) judge() {
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
	s.Verdict = s.worst(total, unready)
	s.Ready = s.Verdict == ""
	if s.Ready {
		s.Verdict = fmt.Sprintf("cluster %s is ready: Kubernetes %s, %s", s.Cluster, s.Release, Plural(len(s.Machines), "machine"))
	}
}

func (s *Status) worst(total, unready int) string {
	if len(s.Machines) == 0 {
		return fmt.Sprintf("cluster %s has no machine yet: run slipway up --name %s", s.Cluster, s.Cluster)
	}
	for _, m := range s.Machines {
		if m.Unreachable != "" {
			return fmt.Sprintf("cluster %s: nobody knows: machine %s cannot be reached: %s", s.Cluster, m.Name, m.Unreachable)
		}
		if !m.Running && slices.ContainsFunc(s.Machines, func(m MachineStatus) bool { return m.Running }) {
			return fmt.Sprintf("cluster %s is not whole: machine %s does not run: start it with slipway machine start %s --name %s", s.Cluster, m.Name, m.Name, s.Cluster)
		}
		if !m.Running {
			return fmt.Sprintf("cluster %s is down: machine %s does not run: start it with slipway up --name %s", s.Cluster, m.Name, s.Cluster)
		}
	}
	for _, m := range s.Machines {
		switch {
		case m.Node == nil:
			return fmt.Sprintf("cluster %s: nobody knows: the agent of %s does not answer (what it has started runs on without it): see slipway logs --name %s agent --machine %s",
				s.Cluster, m.Name, s.Cluster, m.Name)
		case len(m.Node.Items) == 0:
			return fmt.Sprintf("cluster %s is not ready: %s has no plan yet: run slipway up --name %s", s.Cluster, m.Name, s.Cluster)
		}
	}
	if unready > 0 {
		return fmt.Sprintf("cluster %s is not ready: %d of %s are not", s.Cluster, unready, Plural(total, "item"))
	}
	return ""
}

// Unready lists the items that are not ready: first those in trouble, then those at work, which may only feel that trouble, then
// those that wait for others.
func (n NodeStatus) Unready() []reconcile.Status {
	var failing, active, waiting []reconcile.Status
	for _, i := range n.Items {
		switch i.Phase {
		case reconcile.Ready:
		case reconcile.Waiting:
			waiting = append(waiting, i)
		case reconcile.Failing:
			failing = append(failing, i)
		case reconcile.Doing, reconcile.Starting:
			active = append(active, i)
		}
	}
	return slices.Concat(failing, active, waiting)
}

// Items tells how the items of one node are, in the order of its plan.
func (l *Launcher) Items(ctx context.Context, cluster, node string) ([]reconcile.Status, error) {
	s, err := l.Status(ctx, cluster)
	if err != nil {
		return nil, err
	}
	for _, m := range s.Machines {
		switch {
		case m.Name != node:
		case m.Node != nil:
			return m.Node.Items, nil
		case !m.Running:
			return nil, notRunning(cluster, m.Status)
		default:
			return nil, fmt.Errorf("agent of %s: %s", node, m.AgentError)
		}
	}
	return nil, fmt.Errorf("machine %s does not exist yet", node)
}
