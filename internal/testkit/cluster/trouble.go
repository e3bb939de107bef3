// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"os"
	"time"

	"github.com/slipway-project/slipway/internal/sleep"
)

// failWord: fail n1 unit/etcd …: creating or replacing these items fails from now on.
func (t *teller) failWord(args []string) error {
	m, err := t.machine(args[0])
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.broken = map[string]bool{}
	for _, ref := range args[1:] {
		m.broken[ref] = true
	}
	return nil
}

func (m *machine) repair() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.broken = nil
}

// catchUpWord: catchup 1h: the time that a learner takes to catch up. It must come before init.
func (t *teller) catchUpWord(args []string) (err error) {
	t.catchUp, err = time.ParseDuration(args[0])
	return err
}

// cloneWord: clone n2 n3 [whole]: n3 has n2's machine key from now on, or with whole a copy of its disk.
func (t *teller) cloneWord(args []string) error {
	if len(args) < 2 {
		return errors.New("clone FROM TO [whole]")
	}
	from, err := t.machine(args[0])
	if err != nil {
		return err
	}
	to, err := t.machine(args[1])
	if err != nil {
		return err
	}
	to.crash()
	if len(args) > 2 {
		if err := os.RemoveAll(to.disk()); err != nil {
			return err
		}
		if err := copyTree(from.disk(), to.disk()); err != nil {
			return err
		}
		to.start()
		return nil
	}
	key, err := os.ReadFile(from.disk() + keyFile)
	if err != nil {
		return err
	}
	if err := os.WriteFile(to.disk()+keyFile, key, 0o600); err != nil {
		return err
	}
	to.start()
	return nil
}

// clockWord: clock n2 -17520h: the machine's clock is off by that from now on; 0h corrects it.
func (t *teller) clockWord(args []string) error {
	if len(args) != 2 {
		return errors.New("clock MACHINE TIME")
	}
	m, err := t.machine(args[0])
	if err != nil {
		return err
	}
	off, err := time.ParseDuration(args[1])
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.clockOff = off
	return nil
}

// loseWord: lose n2 FILE …: removes files while the machine is off.
func (t *teller) loseWord(args []string) error {
	m, err := t.machine(args[0])
	if err != nil {
		return err
	}
	for _, f := range args[1:] {
		if err := os.Remove(m.disk() + f); err != nil {
			return err
		}
	}
	return nil
}

// stallWord: stall n2 at "claim" 2s. Only for steps at which the agent holds no mutex.
func (t *teller) stallWord(args []string) error {
	if len(args) != 4 {
		return errors.New("stall MACHINE at STEP TIME")
	}
	d, err := time.ParseDuration(args[3])
	if err != nil {
		return err
	}
	return t.fall(args[:3], Crash{stall: d}, nil)
}

// withinWord: within 3s ready n4: the expectation must become true in that time.
func (t *teller) withinWord(args []string) error {
	if len(args) < 3 {
		return errors.New("within TIME WHAT …")
	}
	d, err := time.ParseDuration(args[0])
	if err != nil {
		return err
	}
	return t.expectFor(d, args[1:])
}

// killFor kills the agent. The machine starts the next one after d.
func (m *machine) killFor(d time.Duration) {
	m.fell(true)
	m.mu.Lock()
	m.returning = true
	m.mu.Unlock()
	m.w.later(d, func() {
		m.mu.Lock()
		m.returning = false
		m.mu.Unlock()
		m.boot()
	})
}

// suffer carries out a crash at the step that the agent has reached.
func (a *agent) suffer(due *Crash) {
	switch {
	case due.stall > 0:
		close(due.done)
		_ = sleep.For(a.ctx, due.stall)
		return
	case due.cutOnly:
		a.m.cut(true)
	case due.Mislay:
		a.mislaid.Store(true)
		close(due.done)
		return
	case due.Agentless > 0:
		a.m.killFor(due.Agentless)
		close(due.done)
		return
	case due.AgentOnly:
		a.m.kill()
	default:
		a.m.crash()
	}
	close(due.done)
	if due.Back > 0 {
		a.m.mu.Lock()
		a.m.returning = true
		a.m.mu.Unlock()
		a.m.w.later(due.Back, a.m.start)
	}
}
