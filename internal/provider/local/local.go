// SPDX-License-Identifier: Apache-2.0

// Package local is the provider of machines that Slipway runs on this host, as containers of runc that boot an init of their
// own. How a machine is made is package machine's business.
//
// Read [Machines] first.
package local

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
	"github.com/slipway-project/slipway/internal/provider"
	"github.com/slipway-project/slipway/internal/proxy"
)

// Config says which machines.
type Config struct {
	Cluster string
	Local   *machine.Local
	Exe     string           // this program, which machines run as their agent
	Proxy   proxy.Config     // where the cluster's API proxy keeps its files
	Init    machine.InitKind // of new machines; empty: the default
}

// Machines are a cluster's machines on this host. It implements [provider.Machines].
type Machines struct{ Config }

var (
	_ provider.Machines = Machines{}
	_ provider.Host     = host{}
)

// List implements [provider.Machines].
func (m Machines) List(ctx context.Context) ([]machine.Status, error) {
	return m.Local.List(ctx, m.Cluster)
}

// Ensure implements [provider.Machines].
func (m Machines) Ensure(ctx context.Context, n config.NodeName) (machine.Change, error) {
	change, err := m.Local.Ensure(ctx, machine.Spec{Cluster: m.Cluster, Name: n.Name, Index: n.Index, Address: n.Address, Binary: m.Exe, Init: m.Init})
	if err != nil {
		return change, err
	}
	if change.BinaryReplaced && !change.Started {
		if err := m.Local.RestartAgent(ctx, m.Cluster, n.Name); err != nil {
			return change, fmt.Errorf("restart agent: %w", err)
		}
	}
	return change, nil
}

// Remove implements [provider.Machines]: the machine's disk is deleted.
func (m Machines) Remove(ctx context.Context, name string) error {
	return m.Local.Remove(ctx, m.Cluster, name)
}

// Host implements [provider.Machines].
func (m Machines) Host(name string) provider.Host { return host{m, name} }

// Server implements [provider.Machines]. It starts the API proxy at 127.0.0.1 unless it is running: the host has no route into
// the machines' network. The proxy prefers node, then any other running control plane.
func (m Machines) Server(ctx context.Context, node string) (string, error) {
	all, err := m.List(ctx)
	if err != nil {
		return "", err
	}
	c := m.Proxy
	c.Exe = m.Local.Binary(m.Cluster, node) // the agent's executable, so that both share one file in memory
	c.Sockets = []string{m.Socket(node, provider.APISocket)}
	for _, other := range all {
		if other.Running && other.Name != node && provider.HasAdminConf(ctx, m, other.Name) {
			c.Sockets = append(c.Sockets, m.Socket(other.Name, provider.APISocket))
		}
	}
	endpoint, err := proxy.Spawn(ctx, c)
	if err != nil {
		return "", fmt.Errorf("start the API proxy: %w", err)
	}
	return "https://" + endpoint.Addr.String(), nil
}

// Socket is the path on this host of a socket in a machine's run directory.
func (m Machines) Socket(name, socket string) string {
	return filepath.Join(m.Local.RunDir(m.Cluster, name), socket)
}

// host is one of the machines.
type host struct {
	machines Machines
	name     string
}

// Dial implements [provider.Host].
func (h host) Dial(ctx context.Context, socket string) (net.Conn, error) {
	return proxy.DialUnix(ctx, h.machines.Socket(h.name, socket))
}

// Read implements [provider.Host]: the files are on this host's disk, whether the machine is running or not.
func (h host) Read(_ context.Context, path string) ([]byte, error) {
	onHost, err := h.pathOnHost(path)
	if err != nil {
		return nil, err
	}
	return os.ReadFile(onHost)
}

func (h host) pathOnHost(path string) (string, error) {
	m := h.machines
	for inside, data := range map[string]string{"/etc/kubernetes/": "etc-kubernetes", provider.StateDir: "slipway"} {
		if below, ok := strings.CutPrefix(path, inside); ok && filepath.IsLocal(below) {
			return filepath.Join(m.Local.DataDir(m.Cluster, h.name, data), below), nil
		}
	}
	return "", fmt.Errorf("find %s of machine %s: it is not in a directory that the host can access", path, h.name)
}

// Write implements [provider.Host]. The machine may never have been booted.
func (h host) Write(_ context.Context, name string, content []byte) error {
	onHost, err := h.pathOnHost(provider.StateDir + name)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(onHost), 0o700); err != nil {
		return err
	}
	return durable.WriteFile(onHost, 0o600, content)
}

// AwaitDown implements [provider.Host]: it returns nil when the machine's PID 1 has exited.
func (h host) AwaitDown(ctx context.Context) error {
	return h.machines.Local.AwaitEnd(ctx, h.machines.Cluster, h.name)
}
