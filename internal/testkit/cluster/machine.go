// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/sleep"

	"github.com/slipway-project/slipway/internal/backend/fake"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/node"
	"github.com/slipway-project/slipway/internal/node/initserver"
)

// machine is a computer: a disk, processes, a place in the network, and at most one agent at a time.
type machine struct {
	w       *World
	name    string
	address netip.Addr

	mu        sync.Mutex // guards the fields below
	root      string     // its disk; a new copy after each crash, so that an agent that is dead writes nowhere
	copies    int        // of the disk
	agent     *agent     // nil: off, or between two agents
	last      *agent     // the one before, which may not have ended yet
	on        bool
	isCut     bool
	clockOff  time.Duration // how far its clock is off
	processes *fake.Host    // they live as long as the machine is on
	etcd      string        // the node whose etcd runs here; empty: none does
	etcdIn    *cluster      // where
	apiserver bool
	wanted    map[string]plan.Unit // units that the machine's supervisor keeps
	changed   chan struct{}        // closed and replaced when a process comes or goes
	target    *node.JoinTarget
	stopped   error // why the last agent ended by itself
	resetting bool
	broken    map[string]bool // items that cannot be done
	committed string          // the cluster that it was committed to
	told      bool            // it has kept its target
	returning bool            // it is off and comes back by itself
	kubelet   bool            // it runs
	voiceless time.Time       // since when nobody hears the kubelet; zero: it is heard, if it runs
	node      string          // that it was last
	joining   bool            // the operator does something about it
	hopeless  bool            // nobody expects it to get in
	quiet     time.Time       // since when it says nothing; of the story's goroutine
	handed    chan struct{}   // closed when the last plan has been handed over; of the story's goroutine
	exchanges
	made map[string]pin.Pin // pin of each CA by claim and name: none is made twice
}

// secret is what a machine is initialised with.
func (m *machine) secret() string { return "secret-of-" + m.name }

func (m *machine) disk() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.root
}

// prepare gives the machine its init secret, as whoever installs machines does.
func (m *machine) prepare() error {
	path := m.disk() + "/var/lib/slipway/init-secret.json"
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return os.WriteFile(path, initserver.SecretFile(m.secret()), 0o600)
}

// start switches the machine on.
func (m *machine) start() {
	m.mu.Lock()
	if m.on {
		m.mu.Unlock()
		return
	}
	m.returning = false
	if !m.isCut {
		m.voiceless = time.Time{}
	}
	m.on, m.processes, m.wanted = true, newProcesses(), map[string]plan.Unit{}
	m.mu.Unlock()
	m.w.note("%s is on", m.name)
	m.w.changeNetwork()
	m.boot()
}

// boot begins an agent, unless the machine is off or has one.
func (m *machine) boot() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.on || m.agent != nil || m.w.isOver() {
		return
	}
	a, err := newAgent(m, m.root)
	if err != nil {
		m.stopped = err
		m.w.note("%s: the agent does not start: %v", m.name, err)
		m.w.later(time.Second, m.boot) // PID 1 tries again
		return
	}
	if !m.lifeless.IsZero() && time.Since(m.lifeless) > lifelessAfter {
		m.forget()
	}
	m.agent = a
	go a.run()
	if m.target != nil && !m.told {
		go m.tell(*m.target)
	}
}

// ended hears that an agent is over.
func (m *machine) ended(a *agent, err error) {
	m.mu.Lock()
	mine := m.agent == a
	if mine {
		m.agent, m.stopped, m.lifeless = nil, err, time.Now()
	}
	again := mine && m.on
	m.mu.Unlock()
	if mine {
		a.die()
		m.w.note("%s: the agent ended by itself: %v", m.name, err)
	}
	if again {
		m.w.later(50*time.Millisecond, m.boot)
	}
}

// kill ends the agent as SIGKILL does; the machine starts another one.
func (m *machine) kill() {
	m.fell(true)
	m.w.later(50*time.Millisecond, m.boot)
}

// crash is a power cut.
func (m *machine) crash() { m.fell(false) }

// fell lets agent and, in a power cut, all processes end now. What is on the disk now stays; what the dead agent still does reaches
// nobody.
func (m *machine) fell(agentOnly bool) {
	m.mu.Lock()
	a := m.agent
	m.agent = nil
	if a != nil {
		a.die()
		m.last, m.lifeless = a, time.Now()
	}
	m.copyLocked()
	if !agentOnly && m.on {
		m.on, m.voiceless = false, time.Now()
		m.endProcessesLocked()
	}
	m.mu.Unlock()
	m.w.note("%s fell (agent only: %t)", m.name, agentOnly)
	m.w.changeNetwork()
}

func (m *machine) endProcessesLocked() {
	if m.processes != nil {
		m.processes.Close()
	}
	if m.etcd != "" {
		m.etcdIn.etcd.Kill(m.etcd)
	}
	m.kubelet = false
	m.forget()
	m.etcd, m.etcdIn, m.apiserver, m.wanted = "", nil, false, map[string]plan.Unit{}
	m.changeLocked()
}

func (m *machine) changeLocked() {
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *machine) changes() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

// off ends everything for good and waits for it.
func (m *machine) off() {
	m.crash()
	m.mu.Lock()
	last := m.last
	m.mu.Unlock()
	if last != nil {
		<-last.done
	}
}

// cut separates the machine from all others.
func (m *machine) cut(isCut bool) {
	m.mu.Lock()
	m.isCut = isCut
	m.forget()
	if m.voiceless = (time.Time{}); isCut || !m.on {
		m.voiceless = time.Now()
	}
	name, in := m.etcd, m.etcdIn
	m.mu.Unlock()
	if name != "" {
		in.connect(name, !isCut)
	}
	m.w.changeNetwork()
}

// reachable tells whether others can talk to the machine.
func (m *machine) reachable() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.on && !m.isCut
}

// running is the agent, or nil.
func (m *machine) running() *agent {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.agent
}

// tell has the machine join a cluster, as soon as it listens.
func (m *machine) tell(t node.JoinTarget) {
	for range 600 {
		a := m.running()
		if a == nil {
			return // the next agent is told anew
		}
		if err := a.enrol.Join(a.ctx, t); err == nil && a.alive() == nil {
			m.mu.Lock()
			m.told = true
			m.mu.Unlock()
			return
		}
		if sleep.For(a.ctx, time.Second) != nil {
			return
		}
	}
}
