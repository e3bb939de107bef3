// SPDX-License-Identifier: Apache-2.0

package members_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/control/members"
	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/control/registry/registrytest"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/membership"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/etcd/etcdtest"
	"github.com/slipway-project/slipway/internal/testkit"
)

// world is a cluster's etcd with a manager on each control plane. It runs in memory with a fake clock, or on real etcd.
type world struct {
	t     testing.TB
	lab   etcdtest.Lab
	store *registrytest.Memory
	log   *slog.Logger

	mu       sync.Mutex // guards the fields below
	managers map[string]*members.Manager
	runs     map[string]context.CancelFunc
	hidden   string // the node that has no record
}

func newWorld(t testing.TB, lab etcdtest.Lab) *world {
	t.Helper()
	w := &world{
		t: t, lab: lab, store: registrytest.NewMemory(), log: slog.New(slog.NewTextHandler(&lines{t: t}, nil)),
		managers: map[string]*members.Manager{}, runs: map[string]context.CancelFunc{},
	}
	lab.Form(t, "a")
	return w
}

// lines writes to the test's log.
type lines struct{ t testing.TB }

func (l *lines) Write(p []byte) (int, error) {
	l.t.Log(string(bytes.TrimSpace(p)))
	return len(p), nil
}

// records are those of the registry, with fixed nodes.
type records struct {
	*registry.Registry
	w *world
}

func (r records) Nodes(context.Context) ([]admission.Node, error) {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	var nodes []admission.Node
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		if name != r.w.hidden {
			nodes = append(nodes, r.w.node(name))
		}
	}
	return nodes, nil
}

func (w *world) node(name string) admission.Node {
	return admission.Node{Name: name, Key: pin.Pin("key of " + name), Address: netip.MustParseAddr(w.lab.Address(name))}
}

// manager returns the manager of a control plane, which uses its own etcd member. It does not run it.
func (w *world) manager(name string) *members.Manager {
	w.mu.Lock()
	defer w.mu.Unlock()
	if m := w.managers[name]; m != nil {
		return m
	}
	m := members.New(members.Config{
		Etcd: w.lab.Client(w.t, name), Records: records{registry.New(w.store, time.Now), w},
		Log: w.log.With("on", name),
	})
	w.managers[name] = m
	return m
}

// run runs a control plane's manager until stop is called or ctx ends.
func (w *world) run(ctx context.Context, wg *sync.WaitGroup, name string) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	m := w.manager(name)
	wg.Go(func() {
		if err := m.Run(ctx); err != nil {
			w.t.Error(err)
		}
	})
	return cancel
}

// machine is a joining node with its disk and its etcd.
type machine struct {
	w       *world
	node    admission.Node
	permit  []byte
	started bool
	lastErr error
	waits   map[string]bool
}

func (w *world) machine(name string) *machine {
	return &machine{w: w, node: w.node(name), waits: map[string]bool{}}
}

// ask is one request on the node's stream. The node does what the answer says; ask reports whether it is a voter.
func (m *machine) ask(ctx context.Context, via *members.Manager) (promoted bool) {
	answer, err := via.Admit(ctx, m.node, m.started)
	m.lastErr = err
	if err != nil {
		return false
	}
	set := 0
	for _, is := range []bool{answer.Permit != nil, answer.Promoted, answer.Wait != nil} {
		if is {
			set++
		}
	}
	if set != 1 {
		m.w.t.Errorf("%s got %+v, want exactly one answer", m.node.Name, answer)
	}
	if w := answer.Wait; w != nil {
		m.waits[w.What] = true
		if w.What == "" || w.Who == "" || w.Since.IsZero() {
			m.w.t.Errorf("%s waits without saying all: %+v", m.node.Name, w)
		}
	}
	if answer.Permit != nil && !bytes.Equal(answer.Permit, m.permit) {
		m.install(answer)
	}
	return answer.Promoted
}

func (m *machine) install(answer membership.Progress) {
	if m.permit != nil && !answer.Discard {
		m.w.t.Errorf("%s got another permit without a new member", m.node.Name)
	}
	m.w.lab.Kill(m.w.t, m.node.Name)
	m.permit = answer.Permit
	if err := m.w.lab.Start(m.w.t, m.node.Name, m.permit, answer.Discard); err != nil {
		m.lastErr = err // as on a real machine: the next permit may be better
		m.w.t.Logf("%s: %v", m.node.Name, err)
		return
	}
	m.started = true
}

// join asks every 200 ms until the node is a voter.
func (m *machine) join(ctx context.Context, via *members.Manager) error {
	began := time.Now()
	for !m.ask(ctx, via) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s did not join within %s: %w (waits %v)", m.node.Name, time.Since(began), errors.Join(ctx.Err(), m.lastErr), m.waits)
		case <-time.After(200 * time.Millisecond):
		}
	}
	m.w.t.Logf("%s is a voter after %s", m.node.Name, time.Since(began).Round(time.Millisecond))
	return nil
}

// votes checks the list of members. Real etcd may have no leader at the moment, and is asked again.
func (w *world) votes(via, want string) {
	w.t.Helper()
	client := w.lab.Client(w.t, via)
	_, exact := w.lab.(etcdtest.Memory)
	testkit.Until(w.t, time.Minute, "the list of members", func() error {
		all, err := client.Members(w.t.Context())
		if got := etcdtest.Votes(all); err == nil && got != want {
			err = fmt.Errorf("got members %q, want %q", got, want)
		}
		if err != nil && exact {
			w.t.Fatal(err)
		}
		return err
	})
}
