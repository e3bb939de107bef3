// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/node/lock"
)

// patience is how long an expectation may take to become true. The commands before it have usually waited for it.
const patience = 2 * time.Minute

// expectWord: expect WHAT …. It asks until the expectation is true.
func (t *teller) expectWord(args []string) error { return t.expectFor(patience, args) }

func (t *teller) expectFor(patience time.Duration, args []string) error {
	if len(args) < 2 {
		return errors.New("expect WHAT …")
	}
	ask, ok := expectations()[args[0]]
	if !ok {
		return fmt.Errorf("unknown expectation %q", args[0])
	}
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err = ask(t, args[1:]); err == nil {
			return nil
		}
		t.checkVoices()
	}
	return err
}

func expectations() map[string]func(t *teller, args []string) error {
	return map[string]func(t *teller, args []string) error{
		"committed": each(func(m *machine) error { return m.phase(lock.Committed) }),
		"free":      each(func(m *machine) error { return m.phase(lock.Free) }),
		"ready": each(func(m *machine) error {
			if !m.ready() {
				return fmt.Errorf("%s is not ready: %s", m.name, m.says())
			}
			return nil
		}),
		"idle": each(func(m *machine) error {
			m.mu.Lock()
			defer m.mu.Unlock()
			if m.kubelet {
				return fmt.Errorf("%s runs a kubelet", m.name)
			}
			return nil
		}),
		"members":  (*teller).members,
		"nodes":    (*teller).nodes,
		"clusters": (*teller).howMany,
		"refused":  (*teller).refused,
		"says":     (*teller).saying,
		"name":     (*teller).named,
		"init":     (*teller).initEnded,
		"at":       (*teller).placed,
		"records":  (*teller).recorded,
		"inits":    (*teller).initsWon,
		"has":      (*teller).has,
		"lacks":    (*teller).lacks,
		"crashed":  (*teller).crashed,
		"same":     (*teller).same,
		"runs":     (*teller).running,
		"lease":    (*teller).turn,
	}
}

func each(ask func(m *machine) error) func(t *teller, args []string) error {
	return func(t *teller, args []string) error {
		for _, name := range args {
			m, err := t.machine(name)
			if err != nil {
				return err
			}
			if err := ask(m); err != nil {
				return err
			}
		}
		return nil
	}
}

func (m *machine) phase(want lock.Phase) error {
	a := m.running()
	if a == nil {
		return fmt.Errorf("%s has no agent: %s", m.name, m.says())
	}
	if now := a.lock.State(); now.Phase != want {
		return fmt.Errorf("%s is %s, want %s: %s", m.name, now, want, m.says())
	}
	return nil
}

func (t *teller) only() (*cluster, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.clusters) != 1 {
		return nil, fmt.Errorf("got %d clusters, want 1", len(t.clusters))
	}
	for _, c := range t.clusters {
		return c, nil
	}
	return nil, nil
}

// members N: etcd has this number of voters and no learner.
func (t *teller) members(args []string) error {
	c, err := t.only()
	if err != nil {
		return err
	}
	now := last(c.etcd.History())
	if got := len(strings.Fields(now)); strconv.Itoa(got) != args[0] || strings.Contains(now, ":learner") {
		return fmt.Errorf("got members %q, want %s voters", now, args[0])
	}
	return nil
}

// nodes N: this number of machines are ready nodes.
func (t *teller) nodes(args []string) error {
	n := 0
	for _, m := range t.order {
		if m.ready() {
			n++
		}
	}
	if strconv.Itoa(n) != args[0] {
		return fmt.Errorf("got %d ready nodes, want %s", n, args[0])
	}
	return nil
}

// records N: there is this number of node records.
func (t *teller) recorded(args []string) error {
	c, err := t.only()
	if err != nil {
		return err
	}
	nodes, err := registry.New(c.store, time.Now).Nodes(context.Background())
	if err != nil || strconv.Itoa(len(nodes)) != args[0] {
		return fmt.Errorf("got %d records, want %s: %w", len(nodes), args[0], err)
	}
	return nil
}

// at n2 NODE: the node's record has the address of the machine.
func (t *teller) placed(args []string) error {
	c, err := t.only()
	if err != nil {
		return err
	}
	m, err := t.machine(args[0])
	if err != nil {
		return err
	}
	n, err := registry.New(c.store, time.Now).Node(context.Background(), args[1])
	if err != nil || n.Address != m.address {
		return fmt.Errorf("%s is at %s, want %s: %w", args[1], n.Address, m.address, err)
	}
	return nil
}

func (t *teller) howMany(args []string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.clusters); strconv.Itoa(n) != args[0] {
		return fmt.Errorf("got %d clusters, want %s", n, args[0])
	}
	return nil
}

// refused n4 REASON: a join service has refused the machine for this reason.
func (t *teller) refused(args []string) error {
	m, err := t.machine(args[0])
	if err != nil {
		return err
	}
	pin, err := m.pin()
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var reasons []string
	for _, e := range t.audits {
		if e.Key == pin {
			reasons = append(reasons, string(e.Reason))
		}
	}
	if !slices.Contains(reasons, args[1]) {
		return fmt.Errorf("%s: got the reasons %v, want %s", m.name, slices.Compact(reasons), args[1])
	}
	return nil
}

// says n4 TEXT: the machine's status contains the text.
func (t *teller) saying(args []string) error {
	m, err := t.machine(args[0])
	if err != nil {
		return err
	}
	if now := m.says(); !strings.Contains(now, args[1]) {
		return fmt.Errorf("%s: got status %q, want %q in it", m.name, now, args[1])
	}
	return nil
}

// name n4 NODE: the machine is this node.
func (t *teller) named(args []string) error {
	m, err := t.machine(args[0])
	if err != nil {
		return err
	}
	if got := m.nodeName(); got != args[1] {
		return fmt.Errorf("%s: got node %q, want %q", m.name, got, args[1])
	}
	return nil
}

// init REQUEST committed, or init REQUEST TEXT of its error.
func (t *teller) initEnded(args []string) error {
	t.mu.Lock()
	o := t.inits[args[0]]
	t.mu.Unlock()
	switch {
	case o == nil:
		return fmt.Errorf("unknown request %s", args[0])
	case !o.over():
		return fmt.Errorf("request %s has not ended", args[0])
	case args[1] == "committed":
		if o.err == nil && (o.result.Cluster == "" || len(o.result.Kubeconfig) == 0) {
			return errors.New("init returned no cluster or no kubeconfig")
		}
		return o.err
	case o.err == nil || !strings.Contains(o.err.Error(), args[1]):
		return fmt.Errorf("request %s: got error %w, want %q in it", args[0], o.err, args[1])
	}
	return nil
}

// inits N: this number of requests have made a cluster, and all requests have ended.
func (t *teller) initsWon(args []string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	won := 0
	for id, o := range t.inits {
		if !o.over() {
			return fmt.Errorf("request %s has not ended", id)
		}
		if o.err == nil {
			won++
		}
	}
	if strconv.Itoa(won) != args[0] {
		return fmt.Errorf("got %d requests that made a cluster, want %s", won, args[0])
	}
	return nil
}

// has n2 FILE …: the files exist on the machine.
func (t *teller) has(args []string) error {
	m, err := t.machine(args[0])
	if err != nil {
		return err
	}
	for _, f := range args[1:] {
		if !exists(m.disk() + f) {
			return fmt.Errorf("%s lacks %s", m.name, f)
		}
	}
	return nil
}

// lacks n2 FILE …: the files do not exist on the machine.
func (t *teller) lacks(args []string) error {
	for _, f := range args[1:] {
		if t.has([]string{args[0], f}) == nil {
			return fmt.Errorf("%s has %s", args[0], f)
		}
	}
	return nil
}

// crashed n2 …: the crashes that were prepared for the machines have happened.
func (t *teller) crashed(args []string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.pending {
		select {
		case <-c.done:
		default:
			if slices.Contains(args, c.Machine) {
				return fmt.Errorf("%s has not reached %q", c.Machine, c.Name)
			}
		}
	}
	return nil
}
