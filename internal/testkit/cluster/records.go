// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/sleep"

	"github.com/slipway-project/slipway/internal/control/lease"
	"github.com/slipway-project/slipway/internal/control/members"
	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/control/registry/registrytest"
	"github.com/slipway-project/slipway/internal/control/rollout"
	"github.com/slipway-project/slipway/internal/core/membership"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/etcd/etcdfake"
)

// cluster is what the control planes of one join CA share: etcd, and the records that their API servers store in it.
type cluster struct {
	pin   pin.Pin
	etcd  *etcdfake.Cluster
	store *registrytest.Memory
	used  map[string]pin.Pin // token → the key that it let in, as was seen first; guarded by the world's mu
}

// cluster is the one with this pin.
func (w *World) cluster(ca pin.Pin) *cluster {
	if ca == "" {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.clusters[ca]
	if c == nil {
		c = &cluster{pin: ca, etcd: etcdfake.New(), store: registrytest.NewMemory(), used: map[string]pin.Pin{}}
		c.etcd.CatchUp, c.etcd.Settle = w.catchUp, 5*time.Second
		w.clusters[ca] = c
		w.noteLocked("cluster %.20s has begun", ca)
	}
	return c
}

// hears tells whether Kubernetes considers a node alive: its kubelet, or that of a copy of its disk, has sent a heartbeat
// in the last 40 s.
func (w *World) hears(node string) bool {
	for _, m := range w.order {
		name := m.nodeName()
		m.mu.Lock()
		if name != "" {
			m.node = name
		}
		heard := m.node == node && (m.voiceless.IsZero() && m.kubelet || !m.voiceless.IsZero() && time.Since(m.voiceless) < 40*time.Second)
		m.mu.Unlock()
		if heard {
			return true
		}
	}
	return false
}

// store accesses the records as a control plane does: through its own API server or another machine's, which need etcd.
type store struct {
	a  *agent
	c  *cluster
	at *machine
}

var (
	errNoAPI   = errors.New("the API server does not respond")
	errMislaid = errors.New("the answer is lost")
)

func (s store) ask(ctx context.Context) error {
	if err := sleep.For(ctx, s.a.m.w.delay()); err != nil {
		return err
	}
	if err := s.a.alive(); err != nil {
		return err
	}
	if !s.a.reaches(s.at) { // there is no refusal, only a timeout
		<-ctx.Done()
		return ctx.Err()
	}
	if err := s.at.serves(ctx, s.c, s.at.nodeName()); err != nil {
		return err
	}
	return s.a.alive()
}

func (s store) Get(ctx context.Context, kind, name string) (registry.Item, error) {
	if err := s.ask(ctx); err != nil {
		return registry.Item{}, err
	}
	return s.c.store.Get(ctx, kind, name)
}

func (s store) List(ctx context.Context, kind string) ([]registry.Item, error) {
	if err := s.ask(ctx); err != nil {
		return nil, err
	}
	return s.c.store.List(ctx, kind)
}

func (s store) Put(ctx context.Context, item registry.Item) (out registry.Item, err error) {
	if err := s.ask(ctx); err != nil {
		return out, err
	}
	what := "put " + item.Kind
	if item.Kind == lease.Kind && item.Name == rollout.Name {
		what = "put rollout lease"
	}
	s.a.pass(what)
	if err := s.a.alive(); err != nil {
		return out, err
	}
	out, err = s.c.store.Put(ctx, item)
	if err == nil {
		s.a.m.w.checkRecords(s.c, item)
	}
	s.a.pass(what + " done")
	if s.a.mislaid.Swap(false) {
		return registry.Item{}, errMislaid
	}
	if dead := s.a.alive(); dead != nil {
		return registry.Item{}, dead
	}
	return out, err
}

func (s store) Delete(ctx context.Context, kind, name, version string) error {
	if err := s.ask(ctx); err != nil {
		return err
	}
	s.a.pass("delete " + kind)
	if err := s.a.alive(); err != nil {
		return err
	}
	return s.c.store.Delete(ctx, kind, name, version)
}

// Watch implements registry.Store. While the API server does not respond, it delays the call of changed.
func (s store) Watch(ctx context.Context, kind string, changed func()) error {
	return s.c.store.Watch(ctx, kind, func() {
		for s.ask(ctx) != nil {
			if sleep.For(ctx, 500*time.Millisecond) != nil {
				return
			}
		}
		changed()
	})
}

// etcd accesses etcd's members as a control plane does.
type etcd struct {
	a    *agent
	c    *cluster
	node string
}

var _ members.Etcd = etcd{}

func (e etcd) Members(ctx context.Context) ([]membership.Member, error) {
	if err := sleep.For(ctx, e.a.m.w.delay()); err != nil {
		return nil, err
	}
	return e.c.etcd.Client(e.node).Members(ctx)
}

func (e etcd) Health(ctx context.Context, m membership.Member) (membership.Member, error) {
	return e.c.etcd.Client(e.node).Health(ctx, m)
}

func (e etcd) AddLearner(ctx context.Context, peer string) (id uint64, all []membership.Member, err error) {
	err = e.alter(ctx, "add learner", func() error {
		id, all, err = e.c.etcd.Client(e.node).AddLearner(ctx, peer)
		return err
	})
	return id, all, err
}

func (e etcd) Promote(ctx context.Context, id uint64) error {
	return e.alter(ctx, "promote", func() error { return e.c.etcd.Client(e.node).Promote(ctx, id) })
}

func (e etcd) Remove(ctx context.Context, id uint64) error {
	return e.alter(ctx, "remove member", func() error { return e.c.etcd.Client(e.node).Remove(ctx, id) })
}

func (e etcd) MoveLeader(ctx context.Context, id uint64) error {
	return e.alter(ctx, "move leader", func() error { return e.c.etcd.Client(e.node).MoveLeader(ctx, id) })
}

// alter makes one change of the members and checks the invariants afterwards.
func (e etcd) alter(ctx context.Context, what string, do func() error) error {
	if err := sleep.For(ctx, e.a.m.w.delay()); err != nil {
		return err
	}
	e.a.pass(what)
	if err := e.a.alive(); err != nil {
		return err
	}
	before := e.c.hasQuorum()
	err := do()
	if err == nil {
		e.a.m.w.note("%s: %s: %v", e.a.m.name, what, last(e.c.etcd.History()))
		e.a.m.w.checkMembers(e.c, what, before)
	}
	e.a.pass(what + " done")
	if dead := e.a.alive(); dead != nil {
		return dead
	}
	return err
}

func last(lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	return lines[len(lines)-1]
}

// connect connects a member to the others or cuts it off. A single member always stays connected.
func (c *cluster) connect(name string, on bool) {
	if on || len(strings.Fields(last(c.etcd.History()))) == 1 {
		c.etcd.Heal(name)
		return
	}
	c.etcd.Cut(name)
}
