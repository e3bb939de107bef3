// SPDX-License-Identifier: Apache-2.0

// Package provider has the interfaces behind which the machines of a cluster are reached: machines that Slipway runs on this
// host (package local), or machines that exist already and are reached over SSH (package ssh). Code that brings up or operates
// a cluster does not know which of the two it has.
//
// Read [Machines] and [Host] first.
package provider

import (
	"context"
	"fmt"
	"net"
	"strings"

	"github.com/slipway-project/slipway/internal/agentclient"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/machine"
)

// Machines are the machines of one cluster. The methods are safe for concurrent use, also for different machines at once.
type Machines interface {
	// List returns the machines that earlier commands created or recorded, in no particular order, with their current state.
	// A machine that cannot be reached is listed, with Running false and the reason in Unreachable; it is not an error.
	List(ctx context.Context) ([]machine.Status, error)
	// Ensure makes the machine run the agent of this slipway: it creates or records the machine, boots it, and exchanges and
	// restarts an agent of another version. It never changes what else is on the machine. It is idempotent: a second call
	// changes nothing. It returns before the agent answers.
	Ensure(ctx context.Context, n config.NodeName) (machine.Change, error)
	// Remove removes a machine that is not in a cluster; callers check that. A machine that Slipway did not create is only
	// forgotten. Removing an absent machine is not an error.
	Remove(ctx context.Context, name string) error
	// Host gives access to one machine, which need not be running. It does not connect yet.
	Host(name string) Host
	// Server returns the URL at which programs on this host reach the API through that machine, starting the API proxy if one
	// is needed.
	Server(ctx context.Context, node string) (string, error)
}

// Host is access to one machine.
type Host interface {
	// Dial connects to a socket in the agent's run directory ([AgentSocket], [InitSocket], [APISocket]), once.
	Dial(ctx context.Context, socket string) (net.Conn, error)
	// Read returns a file below /etc/kubernetes or [StateDir]. The error is fs.ErrNotExist only if the file is known not to
	// exist.
	Read(ctx context.Context, path string) ([]byte, error)
	// Write writes a file below [StateDir], with mode 0600, before the agent reads it: an agent that is already running is
	// restarted by the next Ensure.
	Write(ctx context.Context, name string, content []byte) error
	// AwaitDown returns nil when a machine that was running has gone down and only Ensure can start it again. It returns ctx's
	// error otherwise, and waits forever for a machine that Slipway cannot start.
	AwaitDown(ctx context.Context) error
}

// Sockets in a machine's /run/slipway.
const (
	AgentSocket = "agent.sock"
	InitSocket  = "init.sock"
	APISocket   = "api.sock"
)

// Files in a machine.
const (
	StateDir   = "/var/lib/slipway/" // the agent's files
	PlanFile   = StateDir + "plan/plan.json"
	InitSecret = "init-secret.json" // below StateDir: by what the machine recognizes its initializer
)

// Agent dials the agent of a machine.
func Agent(h Host) agentclient.Dialer {
	return func(ctx context.Context) (net.Conn, error) { return h.Dial(ctx, AgentSocket) }
}

// HasAdminConf reports whether a machine has the administrator's kubeconfig, as control planes do.
func HasAdminConf(ctx context.Context, m Machines, name string) bool {
	_, err := m.Host(name).Read(ctx, config.AdminConf)
	return err == nil
}

// Pick finds a machine by name; "" is the first one.
func Pick(cluster string, list []machine.Status, name string) (machine.Status, error) {
	if len(list) == 0 {
		return machine.Status{}, fmt.Errorf("cluster %s has no machines yet: run slipway up --name %s", cluster, cluster)
	}
	if name == "" {
		return list[0], nil
	}
	var names []string
	for _, m := range list {
		if m.Name == name {
			return m, nil
		}
		names = append(names, m.Name)
	}
	return machine.Status{}, fmt.Errorf("machine %q: cluster %s has %s", name, cluster, strings.Join(names, ", "))
}

// NotRunning is the error for a machine that must be running and is not, with the command that starts it. It wraps
// machine.ErrNotRunning unless the machine cannot be reached.
func NotRunning(cluster string, m machine.Status) error {
	if m.Unreachable != "" {
		return fmt.Errorf("machine %s is unreachable: %s", m.Name, m.Unreachable)
	}
	return fmt.Errorf("machine %s: %w: start it with slipway machine start %s --name %s", m.Name, machine.ErrNotRunning, m.Name, cluster)
}
