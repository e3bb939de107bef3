// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/slipway-project/slipway/api/control/v1"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/machine"
)

// OwnSocket is the agent's socket of the machine that this program runs on.
const OwnSocket = machine.RunDir + "/agent.sock"

// target is an agent that may be asked.
type target struct {
	machine string
	dial    dialer
}

// targets are the agents of a local cluster that runs, those of control planes first. Where there is no such cluster, and this
// host is itself a machine of one, it is its own agent.
func (l *Launcher) targets(ctx context.Context, cluster string) ([]target, error) {
	machines, list, err := l.machinesOf(ctx, cluster)
	if errors.Is(err, ErrNoCluster) && isSocket(OwnSocket) {
		return []target{{"this machine", ownAgent}}, nil
	}
	if err != nil {
		return nil, err
	}
	if _, err := pick(cluster, list, ""); err != nil {
		return nil, err
	}
	first := l.controlPlanes(cluster)
	slices.SortStableFunc(list, func(a, b machine.Status) int { return cmp.Compare(rank(first, a), rank(first, b)) })
	var out []target
	for _, m := range list {
		if m.Running {
			out = append(out, target{m.Name, toAgent(machines.At(m.Name))})
		}
	}
	if len(out) == 0 {
		if u := slices.IndexFunc(list, func(m machine.Status) bool { return m.Unreachable != "" }); u >= 0 {
			return nil, notRunning(cluster, list[u])
		}
		return nil, fmt.Errorf("cluster %s: no machine runs: start them with slipway up --name %s", cluster, cluster)
	}
	return out, nil
}

func rank(first map[string]bool, m machine.Status) int {
	if first[m.Name] {
		return 0
	}
	return 1
}

// controlPlanes names the control planes of the kept spec; it is only a hint whom to ask first.
func (l *Launcher) controlPlanes(cluster string) map[string]bool {
	names := map[string]bool{}
	c, err := l.Load(Source{Name: cluster})
	if err != nil {
		return names
	}
	for _, p := range c.Config.Pools {
		for _, n := range p.Nodes {
			names[n.Name] = slices.Contains(p.Roles, config.RoleControlPlane)
		}
	}
	return names
}

func isSocket(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode()&fs.ModeSocket != 0
}

// askControl puts a question to the first control plane that takes it. A worker, or a control plane that is just beginning,
// says that it cannot; then the next one is asked. An answer of any other kind is the answer.
func (l *Launcher) askControl(ctx context.Context, cluster string, ask func(ctx context.Context, c controlv1.ControlClient) error) error {
	list, err := l.targets(ctx, cluster)
	if err != nil {
		return err
	}
	var silent []error
	for _, t := range list {
		err := withAgent(ctx, t, func(ctx context.Context, a *Agent) error { return ask(ctx, controlv1.NewControlClient(a.conn)) })
		code := status.Code(err)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case code == codes.Unimplemented:
			silent = append(silent, fmt.Errorf("%s is no control plane", t.machine))
		case code == codes.Unavailable || errors.Is(err, errNoAgent):
			silent = append(silent, fmt.Errorf("%s: %w", t.machine, plain(err)))
		default:
			return plain(err)
		}
	}
	return fmt.Errorf("no control plane answers: %w", errors.Join(silent...))
}

// askMachine puts a question to one machine's agent.
func (l *Launcher) askMachine(ctx context.Context, cluster, name string, ask func(ctx context.Context, a *Agent) error) error {
	machines, m, err := l.machineNamed(ctx, cluster, name)
	switch {
	case errors.Is(err, ErrNoCluster) && isSocket(OwnSocket) && isThisHost(name):
		return withAgent(ctx, target{name, ownAgent}, ask)
	case err != nil:
		return err
	case m.Unreachable != "":
		return notRunning(cluster, m)
	case !m.Running:
		return fmt.Errorf("machine %s: %w: start it with slipway machine start %s --name %s", m.Name, machine.ErrNotRunning, m.Name, cluster)
	}
	return withAgent(ctx, target{m.Name, toAgent(machines.At(m.Name))}, ask)
}

func isThisHost(name string) bool {
	host, err := os.Hostname()
	return err == nil && host == name
}

var errNoAgent = errors.New("the agent does not answer")

// withAgent asks an agent that takes connections, or gives up soon: PID 1 may be starting it again just now.
func withAgent(ctx context.Context, t target, ask func(ctx context.Context, a *Agent) error) error {
	patient, cancel := context.WithTimeout(ctx, agentPatience)
	defer cancel()
	conn, err := dialSoon(patient, t.dial)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		_, why := t.dial(ctx)
		return fmt.Errorf("%w: %w: see slipway logs agent --machine %s", errNoAgent, cmp.Or(why, err), filepath.Base(t.machine))
	}
	conn.Close()
	agent, err := dialAgent(t.dial)
	if err != nil {
		return err
	}
	defer agent.Close()
	return ask(ctx, agent)
}
