// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// commands are the first words of a story's lines.
func commands() map[string]func(t *teller, args []string) error {
	return map[string]func(t *teller, args []string) error{
		"init": (*teller).initWord, "join": (*teller).joinWord, "token": (*teller).tokenWord, "approve": (*teller).approveWord, "remove": (*teller).removeWord, "reset": (*teller).resetWord,
		"cut": (*teller).cutWord, "fail": (*teller).failWord, "repair": on((*machine).repair), "catchup": (*teller).catchUpWord, "clone": (*teller).cloneWord, "lose": (*teller).loseWord, "clock": (*teller).clockWord, "stall": (*teller).stallWord, "within": (*teller).withinWord, "heal": on(func(m *machine) { m.cut(false) }),
		"crash": (*teller).crashWord, "kill": (*teller).killWord, "start": (*teller).startWord, "pause": (*teller).pauseWord,
		"wait": (*teller).waitWord, "expect": (*teller).expectWord, "remember": (*teller).rememberWord, "change": (*teller).changeWord, "lose-answer": (*teller).mislayWord,
	}
}

func (t *teller) machine(name string) (*machine, error) {
	if m := t.machines[name]; m != nil {
		return m, nil
	}
	return nil, fmt.Errorf("unknown machine %q", name)
}

// on makes a command of a function of one machine. Its arguments are machines.
func on(do func(m *machine)) func(t *teller, args []string) error {
	return func(t *teller, args []string) error {
		if len(args) == 0 {
			return errors.New("want at least one machine")
		}
		for _, name := range args {
			m, err := t.machine(name)
			if err != nil {
				return err
			}
			do(m)
		}
		return nil
	}
}

func (t *teller) crashWord(args []string) error { return t.fall(args, Crash{}, (*machine).crash) }
func (t *teller) killWord(args []string) error {
	return t.fall(args, Crash{AgentOnly: true}, (*machine).kill)
}

func (t *teller) cutWord(args []string) error {
	return t.fall(args, Crash{cutOnly: true}, func(m *machine) { m.cut(true) })
}

// fall: crash n1, or crash n1 at "step" [#2] [back 3s]. With back, the machine starts again by itself, and the run need
// not reach the step.
func (t *teller) fall(args []string, how Crash, now func(m *machine)) error {
	if len(args) < 3 || args[1] != "at" {
		return on(now)(t, args)
	}
	m, err := t.machine(args[0])
	if err != nil {
		return err
	}
	c := &how
	c.Machine, c.Name, c.done = m.name, args[2], make(chan struct{})
	if unit, ok := strings.CutSuffix(c.Name, " started"); ok { // shorthand
		c.Name = "create unit/" + unit + " done"
	}
	for i := 3; i < len(args); i++ {
		if args[i] != "back" && args[i] != "for" {
			if c.N, err = strconv.Atoi(strings.TrimPrefix(args[i], "#")); err != nil {
				return err
			}
			continue
		}
		into := map[string]*time.Duration{"back": &c.Back, "for": &c.Agentless}[args[i]]
		if i++; i == len(args) {
			return errors.New("want a time")
		}
		if *into, err = time.ParseDuration(args[i]); err != nil {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.armed = append(t.armed, c)
	t.pending = append(t.pending, c)
	return nil
}

// startWord switches machines on. It waits until the prepared crash of a machine has happened.
func (t *teller) startWord(args []string) error {
	for _, name := range args {
		m, err := t.machine(name)
		if err != nil {
			return err
		}
		for end := time.Now().Add(5 * time.Minute); m.isOn() && t.toFall(name); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				return fmt.Errorf("%s did not crash: %s", name, m.says())
			}
		}
		m.start()
	}
	return nil
}

// toFall tells whether a prepared crash of the machine has not happened yet.
func (t *teller) toFall(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.pending, func(c *Crash) bool {
		select {
		case <-c.done:
			return false
		default:
			return c.Machine == name && c.Back == 0 && !c.AgentOnly
		}
	})
}

func (m *machine) isOn() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.on
}

// pauseWord: pause n2 20s: the machine is cut off for that time.
func (t *teller) pauseWord(args []string) error {
	if len(args) != 2 {
		return errors.New("pause MACHINE TIME")
	}
	m, err := t.machine(args[0])
	if err != nil {
		return err
	}
	d, err := time.ParseDuration(args[1])
	if err != nil {
		return err
	}
	m.cut(true)
	time.Sleep(d)
	m.cut(false)
	return nil
}

// settleLimit is how long a story waits until all machines have settled.
const settleLimit = 15 * time.Minute

// waitWord: wait 10s, or wait until every machine has settled.
func (t *teller) waitWord(args []string) error {
	limit, exact := settleLimit, false
	if len(args) > 0 {
		d, err := time.ParseDuration(args[0])
		if err != nil {
			return err
		}
		limit, exact = d, true
	}
	end := time.Now().Add(limit)
	for time.Now().Before(end) {
		t.checkVoices()
		if !exact && t.settled() {
			return nil
		}
		time.Sleep(200 * time.Millisecond)
	}
	if exact {
		return nil
	}
	return errors.New("some machines have not settled")
}

// settled tells whether every machine that is on has reached the state that the story wants, and all requests have ended.
func (t *teller) settled() bool {
	t.mu.Lock()
	busy := t.handing > 0
	for _, o := range t.inits {
		busy = busy || !o.over()
	}
	t.mu.Unlock()
	if busy {
		return false
	}
	for _, m := range t.order {
		m.mu.Lock()
		idle := !m.on && !m.returning || m.hopeless || m.target == nil && m.committed == "" && !m.joining
		m.mu.Unlock()
		if !idle && !m.ready() {
			return false
		}
	}
	return true
}
