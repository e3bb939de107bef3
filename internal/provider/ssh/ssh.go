// SPDX-License-Identifier: Apache-2.0

// Package ssh is the provider of machines that exist already and are reached over SSH. Slipway installs and starts its agent
// there; it never boots, stops or deletes such a machine. Which machines a cluster has is recorded on this host ([Record]),
// and the record is what makes a cluster one of this kind. How a connection is made is package sshhost's business.
//
// Read [Machines] first, then [Machines.Probe], which finds out what keeps machines from becoming nodes before anything is
// changed on any.
package ssh

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"

	"github.com/slipway-project/slipway/internal/clusterdir"
	"github.com/slipway-project/slipway/internal/core/compose"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/provider"
	"github.com/slipway-project/slipway/internal/sshhost"
)

// Machine is what this host records of a machine: where it is, and the index that decides its pod CIDR.
type Machine struct {
	Name    string         `json:"name"`
	Index   int            `json:"index"`
	Address netip.Addr     `json:"address"`
	SSH     sshhost.Target `json:"ssh"`
}

// Record is a cluster's machines.json. It is written before anything is changed on a machine.
type Record struct {
	Machines []Machine `json:"machines"`
}

const recordSchema = 1

func recordFile(dir clusterdir.Dir, cluster string) string { return dir.Path(cluster, "machines.json") }

// LoadRecord reads a cluster's record. A cluster without one does not consist of machines of this kind; that is not an error.
func LoadRecord(dir clusterdir.Dir, cluster string) (r Record, found bool, err error) {
	err = durable.Load(recordFile(dir, cluster), recordSchema, &r)
	if errors.Is(err, fs.ErrNotExist) {
		return r, false, nil
	}
	if err != nil {
		return r, false, fmt.Errorf("read the machines of cluster %s: %w", cluster, err)
	}
	return r, true, nil
}

// Config says which machines, and how they are reached.
type Config struct {
	Dir     clusterdir.Dir
	Cluster string
	Record  Record
	SSH     sshhost.Config
	Log     *slog.Logger
	Spec    []Machine // optional: what a new spec says of machines; it takes precedence over the record
	Upload  *Upload   // what Ensure and Probe upload; nil for commands that change nothing
}

// Machines are a cluster's machines over SSH. It implements [provider.Machines].
type Machines struct {
	dir     clusterdir.Dir
	cluster string
	hosts   *sshhost.Hosts
	upload  *Upload
	spec    []Machine

	mu     sync.Mutex // guards the field below
	record Record
}

var (
	_ provider.Machines = (*Machines)(nil)
	_ provider.Host     = host{}
)

// New prepares access to machines. Connections are made when they are needed and end with ctx.
func New(ctx context.Context, c Config) *Machines {
	s := c.SSH
	s.Program, s.Log = config.SlipwayBinary, c.Log
	hosts := sshhost.New(s)
	context.AfterFunc(ctx, hosts.Close)
	return &Machines{dir: c.Dir, cluster: c.Cluster, hosts: hosts, upload: c.Upload, spec: c.Spec, record: c.Record}
}

// Target is how a machine is reached.
func (m *Machines) Target(name string) sshhost.Target { return m.find(name).SSH }

// sshHost is the SSH access to a machine, for what [provider.Host] does not offer.
func (m *Machines) sshHost(name string) *sshhost.Host { return m.hosts.At(m.Target(name)) }

// find returns what the spec says of a machine, or else what is recorded.
func (m *Machines) find(name string) Machine {
	is := func(x Machine) bool { return x.Name == name }
	if i := slices.IndexFunc(m.spec, is); i >= 0 {
		return m.spec[i]
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := slices.IndexFunc(m.record.Machines, is); i >= 0 {
		return m.record.Machines[i]
	}
	return Machine{Name: name}
}

// List implements [provider.Machines]: a machine is running if SSH reaches it now.
func (m *Machines) List(ctx context.Context) ([]machine.Status, error) {
	m.mu.Lock()
	known := slices.Clone(m.record.Machines)
	m.mu.Unlock()
	list := make([]machine.Status, len(known))
	var connecting sync.WaitGroup
	for i, k := range known {
		list[i] = machine.Status{Name: k.Name, Index: k.Index, Address: k.Address}
		connecting.Go(func() {
			err := m.sshHost(k.Name).Connect(ctx)
			list[i].Running = err == nil
			if err != nil {
				list[i].Unreachable = err.Error()
			}
		})
	}
	connecting.Wait()
	return list, ctx.Err()
}

// Remove implements [provider.Machines]: the machine is removed from the record and not touched itself.
func (m *Machines) Remove(_ context.Context, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.record.Machines = slices.DeleteFunc(m.record.Machines, func(x Machine) bool { return x.Name == name })
	return m.saveLocked()
}

// remember records where a machine is.
func (m *Machines) remember(x Machine) (first bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.record.Machines, func(k Machine) bool { return k.Name == x.Name })
	switch {
	case i < 0:
		m.record.Machines = append(m.record.Machines, x)
	case m.record.Machines[i] == x:
		return false, nil
	default:
		m.record.Machines[i] = x
	}
	return i < 0, m.saveLocked()
}

func (m *Machines) saveLocked() error {
	if err := os.MkdirAll(m.dir.Path(m.cluster), 0o700); err != nil {
		return fmt.Errorf("record the machines of cluster %s: %w", m.cluster, err)
	}
	return durable.Save(recordFile(m.dir, m.cluster), recordSchema, m.record)
}

// Host implements [provider.Machines].
func (m *Machines) Host(name string) provider.Host { return host{m, name} }

// Server implements [provider.Machines]: the machine's own address, which this host can reach.
func (m *Machines) Server(_ context.Context, node string) (string, error) {
	c, err := m.dir.Load(clusterdir.Source{Name: m.cluster})
	if err != nil {
		return "", err
	}
	return "https://" + net.JoinHostPort(m.find(node).Address.String(), strconv.Itoa(int(compose.APIPort(c.Config)))), nil
}

// host is one of the machines.
type host struct {
	machines *Machines
	name     string
}

// Dial implements [provider.Host].
func (h host) Dial(ctx context.Context, socket string) (net.Conn, error) {
	return h.machines.sshHost(h.name).Dial(ctx, machine.RunDir+"/"+socket)
}

// Read implements [provider.Host]. It can read every file, as root.
func (h host) Read(ctx context.Context, path string) ([]byte, error) {
	return h.machines.sshHost(h.name).Read(ctx, path)
}

// Write implements [provider.Host].
func (h host) Write(ctx context.Context, name string, content []byte) error {
	return h.machines.writeState(ctx, h.name, name, content)
}

// AwaitDown implements [provider.Host]: Slipway cannot start such a machine, so it waits forever.
func (h host) AwaitDown(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}
