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

// machine is a computer: a disk, processes, a network address, and at most one agent at a time.
type machine struct {
	w       *World
	name    string
	address netip.Addr

	mu        sync.Mutex // guards the fields below
	root      string     // its disk; a new copy after each crash, so that the writes of a dead agent have no effect
	copies    int        // of the disk
	agent     *agent     // nil: off, or between two agents
	last      *agent     // the previous one, which may not have ended yet
	on        bool
	isCut     bool
	clockOff  time.Duration // the error of its clock
	processes *fake.Host    // they run while the machine is on
	etcd      string        // the node whose etcd runs here; empty: etcd is not running
	etcdIn    *cluster      // the cluster of that etcd
	apiserver bool
	wanted    map[string]plan.Unit // units that the machine's supervisor keeps
	changed   chan struct{}        // closed and replaced when a process comes or goes
	target    *node.JoinTarget
	stopped   error // the error with which the last agent ended by itself
	resetting bool
	broken    map[string]bool // items that cannot be created or replaced
	committed string          // the ID of the cluster that it was committed to
	told      bool            // it has stored its target
	returning bool            // it is off and starts again by itself
	kubelet   bool            // it is running
	voiceless time.Time       // when the kubelet's last heartbeat was; zero: it sends heartbeats while it is running
	node      string          // its last node name
	joining   bool            // the operator has sent a request to it
	hopeless  bool            // the story does not wait for its join
	quiet     time.Time       // since when it has no status; only used by the story's goroutine
	handed    chan struct{}   // closed when the last plan has been handed over; only used by the story's goroutine
	exchanges
	made map[string]pin.Pin // pin of each CA by claim and name: none is made twice
}

// secret returns the machine's init secret.
func (m *machine) secret() string { return "secret-of-" + m.name }

func (m *machine) disk() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.root
}

// prepare writes the machine's init secret to its disk, as an installation of the machine does.
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

// boot starts an agent, unless the machine is off or has one.
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

// ended is called when an agent has ended.
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

// kill ends the agent as SIGKILL does. The machine starts another one.
func (m *machine) kill() {
	m.fell(true)
	m.w.later(50*time.Millisecond, m.boot)
}

// crash is a power cut.
func (m *machine) crash() { m.fell(false) }

// fell ends the agent and, in a power cut, all processes. The disk keeps its content of this moment, and what the dead
// agent still does has no effect.
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

// off switches the machine off for good and waits until its agent has ended.
func (m *machine) off() {
	m.crash()
	m.mu.Lock()
	last := m.last
	m.mu.Unlock()
	if last != nil {
		<-last.done
	}
}

// cut cuts the machine off from all others, or ends that.
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

// reachable tells whether other machines can connect to the machine.
func (m *machine) reachable() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.on && !m.isCut
}

// running returns the agent, or nil.
func (m *machine) running() *agent {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.agent
}

// tell tells the machine to join a cluster, and retries until the agent has stored the target.
func (m *machine) tell(t node.JoinTarget) {
	for range 600 {
		a := m.running()
		if a == nil {
			return // the next agent is told again
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
