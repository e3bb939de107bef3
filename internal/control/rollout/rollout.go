// SPDX-License-Identifier: Apache-2.0

// Package rollout manages the rollout lease: only its holder may restart a running component of its control plane, so at most one
// control plane of the cluster is unavailable because of a change. A machine acquires the lease before it replaces a component,
// keeps it until the component is ready again and all voters of etcd are healthy, and then releases it.
//
// The lease is a record of the cluster (package control/lease). A holder that dies loses it after 30 s. An agent that restarts
// within that time still holds it, until the items it was acquired for are ready. The package never starts or stops anything. If no
// API server answers, the lease does not count as free: the caller waits, and reconcile decides when to stop waiting.
//
//	        Acquire              peers healthy        release            own components healthy
//	free ────────────► held, waiting ──────► held, working ────► settling ────────────────► free
//	 ▲                  │ two minutes at most: a dead machine must not block the others
//	 └──────────────────┴───────────── not renewed for 30 s ──────┘
//
// Read [Manager] and [Cluster].
//
//	m := rollout.New(log, time.Now)
//	go m.Run(ctx, rollout.Cluster{Self: "dev-main-0", Several: true, Records: records, Unwell: unwell})
//	release, err := m.Acquire(ctx, "unit/etcd", waiting) // "dev-main-1, which restarts unit/etcd since 10:31:02"
package rollout

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/broadcast"
	"github.com/slipway-project/slipway/internal/control/lease"
	"github.com/slipway-project/slipway/internal/core/wait"
)

// Name is the name of the lease's record.
const Name = "rollout"

const (
	life        = 30 * time.Second // the lease expires if it is not renewed for this long
	renewAfter  = 3 * time.Second
	certain     = life - 10*time.Second // a holder that has not renewed for this long no longer relies on the lease
	pollEvery   = 500 * time.Millisecond
	patience    = 2 * time.Minute // how long an unhealthy peer delays a restart
	settleLimit = time.Minute     // how long unhealthy components of this machine delay the release
)

// Cluster is what a control plane knows about its peers while its control role runs.
type Cluster struct {
	Self    string // the node's name
	Several bool   // there are other control planes; a single one needs no lease
	Records lease.Records
	// Unwell returns which control planes are unhealthy and why, or "" if all are healthy. It skips this machine unless own is set.
	Unwell func(ctx context.Context, own bool) string
}

// Manager acquires, renews and releases the lease for one machine. It lives as long as the agent: the control role restarts with
// each plan, and the lease must survive that. It implements reconcile.RolloutLease. Safe for concurrent use.
type Manager struct {
	log *slog.Logger
	now func() time.Time

	ops  chan struct{} // holds a value while a goroutine reads or writes the record
	poke chan struct{}

	peerChanged broadcast.Signal // the control role has begun or ended

	mu     sync.Mutex     // guards the fields below
	peer   *peer          // nil while the control role does not run
	claims map[string]int // items that want or use the lease, and how often
	kept   map[string]int // items that are not known to be ready; they count if the lease was acquired for them
	mine   holding
}

// peer is this machine among the control planes during one run of the control role.
type peer struct {
	Cluster
	lease *lease.Lease
	// adopted: the record was searched for a lease that this machine holds without knowing it, from before its agent started or
	// because an answer was lost. Guarded by Manager.ops.
	adopted bool
}

// holding is whether and how this machine holds the lease. All times are by this machine's clock.
type holding struct {
	holds    bool
	version  string
	since    time.Time // when it was acquired
	renewed  time.Time
	released time.Time // since when no item of this machine needs it; zero while one does
	items    []string  // what it was acquired for
	unsaved  bool      // the record does not name all of them yet
}

type record struct {
	Holder *holder `json:"holder,omitempty"` // nil: the lease is free
}

type holder struct {
	Node  string   `json:"node"`
	Item  string   `json:"item"`  // one of the items that need it now, for people
	Items []string `json:"items"` // all items that it was acquired for: the next agent keeps it until they are ready
	// For people, and so that each renewal writes another version: the clocks of two machines are never compared.
	Since   time.Time `json:"since"`
	Renewed time.Time `json:"renewed"`
}

func (h *holder) String() string {
	return fmt.Sprintf("%s, which restarts %s since %s", h.Node, h.Item, h.Since.UTC().Format(time.TimeOnly))
}

// New returns a manager. Acquire blocks until Run runs.
func New(log *slog.Logger, now func() time.Time) *Manager {
	return &Manager{
		log: log, now: now, ops: make(chan struct{}, 1), poke: make(chan struct{}, 1), claims: map[string]int{}, kept: map[string]int{},
	}
}

// Run renews the lease while this machine needs it and releases it afterwards, until ctx ends. It returns nil then. One run at a time.
func (m *Manager) Run(ctx context.Context, c Cluster) error {
	p := &peer{Cluster: c, lease: lease.New(c.Records, Name, m.now)}
	m.setPeer(p)
	defer m.setPeer(nil)
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for c.Several {
		if err := m.tend(ctx, p); err != nil && ctx.Err() == nil {
			m.log.Debug("renew or release the rollout lease", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-m.poke:
		}
	}
	<-ctx.Done()
	return nil
}

func (m *Manager) setPeer(p *peer) {
	m.mu.Lock()
	m.peer = p
	m.mu.Unlock()
	m.peerChanged.Notify()
}

// Acquire implements reconcile.RolloutLease. It blocks until this machine holds the lease and the peers are healthy, or ctx ends.
// It calls waiting from its own goroutine each time the reason for waiting changes.
func (m *Manager) Acquire(ctx context.Context, item string, waiting func(wait.For)) (release func(), err error) {
	release = m.note(m.claims, item)
	for told := (wait.For{}); ; {
		var err error
		changed := m.peerChanged.Wait()
		m.mu.Lock()
		p := m.peer
		m.mu.Unlock()
		w := wait.For{What: "the control role of this machine, which asks the others", Who: "the agent of this machine"}
		if p != nil {
			if w, err = m.try(ctx, p, item); err == nil && w.None() {
				return release, nil
			}
		}
		if ctx.Err() != nil {
			release()
			return nil, ctx.Err()
		}
		if err != nil {
			w = wait.For{What: "the cluster's records, which name the holder of the rollout lease: " + err.Error(), Who: "the API servers"}
		}
		if !w.Same(told) {
			waiting(w)
			told = w
		}
		select {
		case <-ctx.Done():
			release()
			return nil, context.Cause(ctx)
		case <-changed:
		case <-time.After(pollEvery):
		}
	}
}

// Keep implements reconcile.RolloutLease: it keeps the lease from being released until release is called, if the lease was
// acquired for item, perhaps by an earlier agent. For other items it has no effect: one of them may never become ready, and would
// keep the lease for ever.
func (m *Manager) Keep(item string) (release func()) { return m.note(m.kept, item) }

// note counts item in where, which is claims or kept, until end is called.
func (m *Manager) note(where map[string]int, item string) (end func()) {
	count := func(by int) {
		m.mu.Lock()
		if where[item] += by; where[item] == 0 {
			delete(where, item)
		}
		m.mu.Unlock()
		m.wake()
	}
	count(1)
	return sync.OnceFunc(func() { count(-1) })
}

// wake makes Run check the lease now.
func (m *Manager) wake() {
	select {
	case m.poke <- struct{}{}:
	default:
	}
}

// try acquires the lease if that is possible now. Otherwise it returns what to wait for.
func (m *Manager) try(ctx context.Context, p *peer, item string) (wait.For, error) {
	if !p.Several {
		return wait.For{}, nil
	}
	if err := m.begin(ctx); err != nil {
		return wait.For{}, err
	}
	defer m.end()
	mine := m.holding()
	if !mine.holds || m.now().Sub(mine.renewed) > certain {
		var s record
		version, err := p.lease.Load(ctx, &s)
		if err != nil {
			return wait.For{}, err
		}
		if h := s.Holder; h != nil && h.Node != p.Self && p.lease.Left(version, life) > 0 {
			return wait.For{What: h.String(), Who: h.Node}, nil
		}
		items := []string{item}
		if s.Holder != nil && s.Holder.Node == p.Self {
			items = with(s.Holder.Items, item)
		}
		if err := m.write(ctx, p, version, item, items, m.now()); err != nil {
			if errors.Is(err, lease.ErrLost) {
				return wait.For{What: "another control plane, which has just acquired the rollout lease"}, nil
			}
			return wait.For{}, err
		}
		mine = m.holding()
	}
	if m.now().Sub(mine.since) < patience {
		if why := p.Unwell(ctx, false); why != "" {
			until := mine.since.Add(patience).UTC().Format(time.TimeOnly)
			return wait.For{What: why + " (this machine continues at " + until + " in any case)"}, nil
		}
	}
	m.addItem(item)
	return wait.For{}, nil
}

// addItem adds an item to those that the lease was acquired for. It does not write the record itself but wakes Run for that: a
// restart that repairs the API server must not wait for the API server.
func (m *Manager) addItem(item string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !slices.Contains(m.mine.items, item) {
		m.mine.items, m.mine.unsaved = with(m.mine.items, item), true
		m.wake()
	}
}

func with(items []string, item string) []string {
	if slices.Contains(items, item) {
		return items
	}
	return append(slices.Clone(items), item)
}

// tend renews or releases the lease, or adopts one that this machine holds without knowing it.
func (m *Manager) tend(ctx context.Context, p *peer) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.end()
	mine, wanted := m.holding(), m.wanted()
	switch {
	case !mine.holds:
		return m.adopt(ctx, p)
	case wanted == "" && mine.released.IsZero():
		mine.released = m.now()
		m.setHolding(mine)
	case wanted != "" && !mine.released.IsZero():
		mine.released = time.Time{}
		m.setHolding(mine)
	}
	settled := wanted == "" && (m.now().Sub(mine.released) > settleLimit || p.Unwell(ctx, true) == "")
	if settled && m.wanted() == "" { // an item may have asked while Unwell ran
		_, err := p.lease.Save(ctx, mine.version, record{})
		if err != nil {
			p.adopted = false // a renewal whose answer was lost may have written another version: adopt finds it
		}
		if err == nil || errors.Is(err, lease.ErrLost) {
			m.setHolding(holding{})
		}
		return err
	}
	if m.now().Sub(mine.renewed) < renewAfter && !mine.unsaved {
		return nil
	}
	err := m.write(ctx, p, mine.version, wanted, mine.items, mine.since)
	if errors.Is(err, lease.ErrLost) {
		m.setHolding(holding{})
		m.log.Warn("rollout lease lost: it was not renewed in time")
	}
	return err
}

// adopt takes over the lease that this machine held when its previous agent ended: that agent's restart may not be finished.
func (m *Manager) adopt(ctx context.Context, p *peer) error {
	if p.adopted {
		return nil
	}
	var s record
	version, err := p.lease.Load(ctx, &s)
	if err != nil {
		return err
	}
	if s.Holder == nil || s.Holder.Node != p.Self {
		p.adopted = true
		return nil
	}
	return m.write(ctx, p, version, s.Holder.Item, s.Holder.Items, m.now())
}

// write acquires or renews the lease. After an error the record may still name this machine, because the answer to this write or
// to an earlier one was lost. Then adopt finds out, even if no item asks again.
func (m *Manager) write(ctx context.Context, p *peer, version, item string, items []string, since time.Time) error {
	asked := m.now()
	next, err := p.lease.Save(ctx, version, record{Holder: &holder{Node: p.Self, Item: item, Items: items, Since: since, Renewed: asked}})
	p.adopted = err == nil
	if err != nil {
		return err
	}
	mine := m.holding()
	mine.holds, mine.version, mine.since, mine.renewed = true, next, since, asked
	mine.items, mine.unsaved = items, false
	m.setHolding(mine)
	return nil
}

// wanted returns the first, in lexical order, of the items that want or use the lease, or "".
func (m *Manager) wanted() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	items := slices.Collect(maps.Keys(m.claims))
	for _, item := range m.mine.items {
		if m.kept[item] > 0 {
			items = append(items, item)
		}
	}
	if len(items) == 0 {
		return ""
	}
	return slices.Min(items)
}

// begin and end enclose each operation that reads and writes the record.
func (m *Manager) begin(ctx context.Context) error {
	select {
	case m.ops <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m *Manager) end() { <-m.ops }

func (m *Manager) holding() holding {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mine
}

func (m *Manager) setHolding(h holding) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mine = h
}
