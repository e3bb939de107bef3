// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/proxy"
)

// localMachines are a cluster's machines on this host.
type localMachines struct {
	*Launcher
	local   *machine.Local
	cluster string
	init    machine.InitKind // of new ones; empty means the usual
}

var (
	_ provider = localMachines{}
	_ place    = localPlace{}
)

// List tells how they are.
func (p localMachines) List(ctx context.Context) ([]machine.Status, error) {
	return p.local.List(ctx, p.cluster)
}

// Ensure makes one exist and run.
func (p localMachines) Ensure(ctx context.Context, n config.NodeName) (machine.Change, error) {
	change, err := p.local.Ensure(ctx, machine.Spec{Cluster: p.cluster, Name: n.Name, Index: n.Index, Address: n.Address, Binary: p.Exe, Init: p.init})
	if err != nil {
		return change, err
	}
	if change.BinaryReplaced && !change.Started {
		if err := p.local.RestartAgent(ctx, p.cluster, n.Name); err != nil {
			return change, fmt.Errorf("restart agent: %w", err)
		}
	}
	return change, nil
}

// Remove takes one away with all that is in it.
func (p localMachines) Remove(ctx context.Context, name string) error {
	return p.local.Remove(ctx, p.cluster, name)
}

// At is the way into one.
func (p localMachines) At(name string) place { return localPlace{p, name} }

// Server starts the proxy at 127.0.0.1, unless it runs: the machines' network has no way to the host's.
func (p localMachines) Server(ctx context.Context, node string) (string, error) {
	c := p.proxyConfig(p.cluster)
	var err error
	if c.Sockets, err = p.apiSockets(ctx, node); err != nil {
		return "", err
	}
	c.Exe = p.local.Binary(p.cluster, node) // one file in memory for proxy and agent
	endpoint, err := proxy.Spawn(ctx, c)
	if err != nil {
		return "", fmt.Errorf("start the API proxy: %w", err)
	}
	return "https://" + endpoint.Addr.String(), nil
}

// apiSockets are the ways to the API: of node first, then of all running control planes.
func (p localMachines) apiSockets(ctx context.Context, node string) ([]string, error) {
	all, err := p.List(ctx)
	if err != nil {
		return nil, err
	}
	sockets := []string{p.socket(node, apiSock)}
	for _, m := range all {
		if m.Running && m.Name != node && hasCredential(ctx, p, m.Name) {
			sockets = append(sockets, p.socket(m.Name, apiSock))
		}
	}
	return sockets, nil
}

func (p localMachines) socket(name, socket string) string {
	return filepath.Join(p.local.RunDir(p.cluster, name), socket)
}

type localPlace struct {
	localMachines
	name string
}

// Dial connects to a socket of the agent.
func (p localPlace) Dial(ctx context.Context, socket string) (net.Conn, error) {
	return proxy.DialUnix(ctx, p.socket(p.name, socket))
}

// Read returns a file of a folder that the machine keeps, whether it runs or not.
func (p localPlace) Read(_ context.Context, path string) ([]byte, error) {
	at, err := p.outside(path)
	if err != nil {
		return nil, err
	}
	return os.ReadFile(at)
}

// outside is the host's path of a file inside.
func (p localPlace) outside(path string) (string, error) {
	for inside, folder := range map[string]string{"/etc/kubernetes/": "etc-kubernetes", machineState: "slipway"} {
		if below, ok := strings.CutPrefix(path, inside); ok && filepath.IsLocal(below) {
			return filepath.Join(p.local.DataDir(p.cluster, p.name, folder), below), nil
		}
	}
	return "", fmt.Errorf("find %s of machine %s: it is in no folder that the host sees", path, p.name)
}

// machineState is the folder of the agent's files in a machine.
const machineState = "/var/lib/slipway/"

// Give lays a file into a machine, which may never have run.
func (p localPlace) Give(_ context.Context, name string, content []byte) error {
	at, err := p.outside(machineState + name)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
		return err
	}
	return durable.WriteFile(at, 0o600, content)
}

// AwaitEnd returns nil when the machine's first process has ended.
func (p localPlace) AwaitEnd(ctx context.Context) error {
	return p.local.AwaitEnd(ctx, p.cluster, p.name)
}

// local opens the machines of a cluster on this host.
func (l *Launcher) local(cluster, runc string) (localMachines, error) {
	local, err := l.Machines(runc)
	return localMachines{Launcher: l, local: local, cluster: cluster}, err
}
