// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/sshhost"
)

// farMachine is what this host remembers of a machine that exists: where it is, and which share of the pod range it has.
type farMachine struct {
	Name    string         `json:"name"`
	Index   int            `json:"index"`
	Address netip.Addr     `json:"address"`
	SSH     sshhost.Target `json:"ssh"`
}

// farRecord is written when a machine is first made use of, so a cluster that has one consists of machines that exist.
type farRecord struct {
	Machines []farMachine `json:"machines"`
}

const farSchema = 1

func (l *Launcher) farFile(cluster string) string {
	return filepath.Join(l.clusterDir(cluster), "machines.json")
}

// applied reads the record of a cluster of machines that exist. Every other cluster has none.
func (l *Launcher) applied(cluster string) (r farRecord, is bool, err error) {
	err = durable.Load(l.farFile(cluster), farSchema, &r)
	if errors.Is(err, fs.ErrNotExist) {
		return r, false, nil
	}
	if err != nil {
		return r, false, fmt.Errorf("read which machines cluster %s has: %w", cluster, err)
	}
	return r, true, nil
}

// Applied tells whether a cluster of this host consists of machines that slipway has not made.
func (l *Launcher) Applied(cluster string) (bool, error) {
	_, is, err := l.applied(cluster)
	return is, err
}

// farMachines are a cluster's machines over SSH. They are not slipway's: it starts an agent there, and never ends or deletes them.
type farMachines struct {
	*Launcher
	cluster string
	hosts   *sshhost.Hosts
	brings  *cargo // nil for commands that change nothing

	mu     *sync.Mutex // guards the fields below
	record *farRecord
	spec   map[string]farMachine // what the spec says of those that are not in the record yet
}

var (
	_ provider = farMachines{}
	_ place    = farPlace{}
)

// far opens a cluster's machines. Their connections end with ctx.
func (l *Launcher) far(ctx context.Context, cluster string, r farRecord, acceptNew bool) farMachines {
	c := l.SSH
	c.AcceptNew, c.Program, c.Log = acceptNew, config.SlipwayBinary, l.Log
	hosts := sshhost.New(c)
	context.AfterFunc(ctx, hosts.Close)
	return farMachines{Launcher: l, cluster: cluster, hosts: hosts, mu: &sync.Mutex{}, record: &r, spec: map[string]farMachine{}}
}

// find is what is known of a machine: what the spec says now, or else what is remembered.
func (p farMachines) find(name string) farMachine {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m, ok := p.spec[name]; ok {
		return m
	}
	if i := p.indexLocked(name); i >= 0 {
		return p.record.Machines[i]
	}
	return farMachine{Name: name}
}

func (p farMachines) indexLocked(name string) int {
	return slices.IndexFunc(p.record.Machines, func(m farMachine) bool { return m.Name == name })
}

func (p farMachines) host(name string) *sshhost.Host { return p.hosts.At(p.find(name).SSH) }

// List tells which machines are remembered, and whether they can be reached now.
func (p farMachines) List(ctx context.Context) ([]machine.Status, error) {
	p.mu.Lock()
	known := slices.Clone(p.record.Machines)
	p.mu.Unlock()
	list := make([]machine.Status, len(known))
	var asking sync.WaitGroup
	for i, m := range known {
		list[i] = machine.Status{Name: m.Name, Index: m.Index, Address: m.Address}
		asking.Go(func() {
			err := p.host(m.Name).Connect(ctx)
			list[i].Running = err == nil
			if err != nil {
				list[i].Unreachable = err.Error()
			}
		})
	}
	asking.Wait()
	return list, ctx.Err()
}

// Remove forgets a machine. What is on it stays: it is not slipway's.
func (p farMachines) Remove(_ context.Context, name string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.record.Machines = slices.DeleteFunc(p.record.Machines, func(m farMachine) bool { return m.Name == name })
	return p.saveLocked()
}

// remember keeps where a machine is, before anything is made of it.
func (p farMachines) remember(m farMachine) (first bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := p.indexLocked(m.Name)
	switch {
	case i < 0:
		p.record.Machines = append(p.record.Machines, m)
	case p.record.Machines[i] == m:
		return false, nil
	default:
		p.record.Machines[i] = m
	}
	return i < 0, p.saveLocked()
}

func (p farMachines) saveLocked() error {
	if err := os.MkdirAll(p.clusterDir(p.cluster), 0o700); err != nil {
		return fmt.Errorf("keep which machines cluster %s has: %w", p.cluster, err)
	}
	return durable.Save(p.farFile(p.cluster), farSchema, *p.record)
}

// At is the way into one.
func (p farMachines) At(name string) place { return farPlace{p, name} }

// Server is the machine's own address: whoever applies reaches it.
func (p farMachines) Server(_ context.Context, node string) (string, error) {
	c, err := p.Load(Source{Name: p.cluster})
	if err != nil {
		return "", err
	}
	return "https://" + net.JoinHostPort(p.find(node).Address.String(), strconv.Itoa(int(apiPort(c.Config)))), nil
}

type farPlace struct {
	farMachines
	name string
}

// Dial connects to a socket of the agent.
func (p farPlace) Dial(ctx context.Context, socket string) (net.Conn, error) {
	return p.host(p.name).Dial(ctx, machine.RunDir+"/"+socket)
}

// Read returns a file as root sees it.
func (p farPlace) Read(ctx context.Context, path string) ([]byte, error) {
	return p.host(p.name).Read(ctx, path)
}

// AwaitEnd waits for ever: a machine that goes down is not ours to start, and is waited for.
func (p farPlace) AwaitEnd(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}
