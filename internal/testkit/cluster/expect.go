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

// patience is how long what is expected may take: the words before have waited for most of it.
const patience = 2 * time.Minute

// expectWord asks until the answer is right.
func (t *teller) expectWord(args []string) error { return t.expectFor(patience, args) }

func (t *teller) expectFor(patience time.Duration, args []string) error {
	if len(args) < 2 {
		return errors.New("expect WHAT …")
	}
	ask, ok := expectations()[args[0]]
	if !ok {
		return fmt.Errorf("there is no word %q", args[0])
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
		"fell":     (*teller).fallen,
		"same":     (*teller).same,
		"runs":     (*teller).running,
		"turn":     (*teller).turn,
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
		return nil, fmt.Errorf("there are %d clusters", len(t.clusters))
	}
	for _, c := range t.clusters {
		return c, nil
	}
	return nil, nil
}

// members N: so many voters, and nothing else.
func (t *teller) members(args []string) error {
	c, err := t.only()
	if err != nil {
		return err
	}
	now := last(c.etcd.History())
	if got := len(strings.Fields(now)); strconv.Itoa(got) != args[0] || strings.Contains(now, ":learner") {
		return fmt.Errorf("members %q, want %s voters", now, args[0])
	}
	return nil
}

// nodes N: so many machines are nodes and ready.
func (t *teller) nodes(args []string) error {
	n := 0
	for _, m := range t.order {
		if m.ready() {
			n++
		}
	}
	if strconv.Itoa(n) != args[0] {
		return fmt.Errorf("%d nodes are ready, want %s", n, args[0])
	}
	return nil
}

// records N: so many machines have a record with their key.
func (t *teller) recorded(args []string) error {
	c, err := t.only()
	if err != nil {
		return err
	}
	nodes, err := registry.New(c.store, time.Now).Nodes(context.Background())
	if err != nil || strconv.Itoa(len(nodes)) != args[0] {
		return fmt.Errorf("%d records, want %s: %w", len(nodes), args[0], err)
	}
	return nil
}

// at n2 NODE: the node's record has the address of this machine.
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
		return fmt.Errorf("%d clusters, want %s", n, args[0])
	}
	return nil
}

// refused n4 REASON: a join service has said no to the machine, for this reason.
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
		return fmt.Errorf("%s was answered %v, not %s", m.name, slices.Compact(reasons), args[1])
	}
	return nil
}

// says n4 TEXT: the machine tells what it waits for.
func (t *teller) saying(args []string) error {
	m, err := t.machine(args[0])
	if err != nil {
		return err
	}
	if now := m.says(); !strings.Contains(now, args[1]) {
		return fmt.Errorf("%s says %q, not %q", m.name, now, args[1])
	}
	return nil
}

// name n4 NODE.
func (t *teller) named(args []string) error {
	m, err := t.machine(args[0])
	if err != nil {
		return err
	}
	if got := m.nodeName(); got != args[1] {
		return fmt.Errorf("%s is node %q, not %q", m.name, got, args[1])
	}
	return nil
}

// init REQUEST committed | failed | TEXT of its error.
func (t *teller) initEnded(args []string) error {
	t.mu.Lock()
	o := t.inits[args[0]]
	t.mu.Unlock()
	switch {
	case o == nil:
		return fmt.Errorf("there is no request %s", args[0])
	case !o.over():
		return fmt.Errorf("request %s goes on", args[0])
	case args[1] == "committed":
		if o.err == nil && (o.result.Cluster == "" || len(o.result.Kubeconfig) == 0) {
			return errors.New("the answer is empty")
		}
		return o.err
	case o.err == nil || !strings.Contains(o.err.Error(), args[1]):
		return fmt.Errorf("request %s ended with %w, not %q", args[0], o.err, args[1])
	}
	return nil
}
