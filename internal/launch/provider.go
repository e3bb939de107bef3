// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"net"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/machine"
)

// provider has the machines of one cluster: of this host, or far ones. The road is the same for all. Its methods may be called
// from several goroutines.
type provider interface {
	// List tells how the machines are that it knows: those that were made, or met, by an earlier command.
	List(ctx context.Context) ([]machine.Status, error)
	// Ensure makes the machine run this slipway's agent. A second call changes nothing.
	Ensure(ctx context.Context, n config.NodeName) (machine.Change, error)
	// Remove takes away a machine that is in no cluster.
	Remove(ctx context.Context, name string) error
	// At is the way into one machine, which need not run.
	At(name string) place
	// Server is the URL by which programs on this host reach the API by way of that machine.
	Server(ctx context.Context, node string) (string, error)
}

// place is the way into one machine.
type place interface {
	// Dial connects to a socket of the agent: agentSock, initSock.
	Dial(ctx context.Context, socket string) (net.Conn, error)
	// Read returns a file below /etc/kubernetes or /var/lib/slipway inside; fs.ErrNotExist says that there is none.
	Read(ctx context.Context, path string) ([]byte, error)
	// Give writes a file into /var/lib/slipway inside, 0600, before the agent looks for it.
	Give(ctx context.Context, name string, content []byte) error
	// AwaitEnd returns nil when the machine that ran has gone down for good, so that only Ensure brings it back.
	AwaitEnd(ctx context.Context) error
}

// Sockets in a machine's /run/slipway.
const (
	agentSock = "agent.sock"
	initSock  = "init.sock"
	apiSock   = "api.sock"
)

// planFile is where a machine keeps its plan.
const planFile = "/var/lib/slipway/plan/plan.json"

// lock takes the cluster's lock on this host, and reports for whom it waits.
func (l *Launcher) lock(ctx context.Context, name string, report func(Event)) (unlock func(), err error) {
	local, err := l.Machines("")
	if err != nil {
		return nil, err
	}
	return local.Lock(ctx, name, waits(report))
}

// waits reports who has the lock of the cluster.
func waits(report func(Event)) func(holder string) {
	return func(holder string) {
		report(Event{Stage: StageMachine, Phase: "wait", Text: "another slipway works on this cluster: " + holder})
	}
}
