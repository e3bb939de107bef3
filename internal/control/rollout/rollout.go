// SPDX-License-Identifier: Apache-2.0

// Package rollout manages the rollout lease: only its holder may restart a running component of its control plane, so at most one
// control plane of the cluster is unavailable because of a change. A machine acquires the lease before it replaces a component,
// keeps it until the component is ready again and all voters of etcd are well, and then releases it.
//
// The lease is a record of the cluster (package control/lease). A holder that dies loses it after 30 s. An agent that restarts in
// time still holds it, until what it was acquired for is ready. The package never starts or stops anything. An API server that does
// not answer is never taken for a free lease: the caller waits, and reconcile decides when the waiting ends.
//
//	        Acquire              peers well           release            own components well
//	free ────────────► held, waiting ──────► held, working ────► settling ────────────────► free
//	 ▲                  │ at most two minutes: a dead machine does not stop the others for ever
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

	"github.com/slipway-project/slipway/internal/control/lease"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/sleep"
)

// Name is the name of the lease's record.
const Name = "rollout"

const (
	life        = 30 * time.Second // a holder that has not renewed for so long has lost the lease
	renewAfter  = 3 * time.Second
	certain     = life - 10*time.Second // a holder that has not renewed for so long does not rely on the lease any more
	lookEvery   = 500 * time.Millisecond
	patience    = 2 * time.Minute // with a peer that is not well
	settleLimit = time.Minute     // with the own components, after the replaced one is ready
)

// Cluster is what a control plane knows of its peers while its control role runs.
type Cluster struct {
	Self    string // the node's name
	Several bool   // there are other control planes; without any, the lease is not needed
	Records lease.Records
	// Unwell says which control plane is not well, and why; it is empty when all are well. The own one counts only with own set.
	Unwell func(ctx context.Context, own bool) string
}

// Manager holds one machine's part of the lease for as long as the agent lives: the control role restarts with each plan, and the
// lease outlives that. It implements reconcile.RolloutLease. Safe for concurrent use.
type Manager struct {
	log *slog.Logger
	now func() time.Time

	ops  chan struct{} // holds a value while a goroutine reads or writes the record
	poke chan struct{}

	mu      sync.Mutex // guards the fields below
	peer    *peer      // nil while the control role does not run
	changed chan struct{}
	claims  map[string]int // items that want or use the lease, and how often
	kept    map[string]int // items that are not known to be ready; they count if the lease was acquired for them
	mine    tenure
}

// peer is this machine among the control planes during one run of the control role.
type peer struct {
	Cluster
	lease *lease.Lease
	// adopted: the record was searched for a lease that this machine holds without knowing it, from before its agent started or
	// because an answer was lost. Guarded by Manager.ops.
	adopted bool
}

// tenure is how this machine holds the lease.
type tenure struct {
	holds    bool
	version  string
	since    time.Time // when it was acquired, by this machine's clock
	renewed  time.Time
	released time.Time // since when no item of this machine needs it
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

// New returns a manager. Until Run runs, every caller of Acquire waits.
func New(log *slog.Logger, now func() time.Time) *Manager {
	return &Manager{
		log: log, now: now, ops: make(chan struct{}, 1), poke: make(chan struct{}, 1),
		changed: make(chan struct{}), claims: map[string]int{}, kept: map[string]int{},
	}
}

// Run renews and releases what is held, until ctx ends.
func (m *Manager) Run(ctx context.Context, c Cluster) error {
	p := &peer{Cluster: c, lease: lease.New(c.Records, Name, m.now)}
	m.setPeer(p)
	defer m.setPeer(nil)
	tick := time.NewTicker(lookEvery)
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
	defer m.mu.Unlock()
	m.peer = p
	close(m.changed)
	m.changed = make(chan struct{})
}

// Acquire is reconcile.RolloutLease.
func (m *Manager) Acquire(ctx context.Context, item string, waiting func(wait.For)) (release func(), err error) {
	release = m.note(m.claims, item)
	for told := (wait.For{}); ; {
		var err error
		m.mu.Lock()
		p, changed := m.peer, m.changed
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
		if err := pause(ctx, changed); err != nil {
			release()
			return nil, err
		}
	}
}

// Keep is reconcile.RolloutLease. What was begun under this lease, perhaps by an earlier agent, is not finished before the item is
// ready. It has no effect when the lease was acquired for other items: an item that cannot become ready for a reason of its own
// would keep the lease for ever.
func (m *Manager) Keep(item string) (release func()) { return m.note(m.kept, item) }

// note counts an item in claims or kept until end is called.
func (m *Manager) note(where map[string]int, item string) (end func()) {
	count := func(by int) {
		m.mu.Lock()
		if where[item] += by; where[item] == 0 {
			delete(where, item)
		}
		m.mu.Unlock()
		m.look()
	}
	count(1)
	return sync.OnceFunc(func() { count(-1) })
}

// look has Run look at the lease now.
func (m *Manager) look() {
	select {
	case m.poke <- struct{}{}:
	default:
	}
}

// pause waits until it is time to ask again, or until the control role has begun or ended.
func pause(ctx context.Context, changed <-chan struct{}) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	errChanged := errors.New("changed")
	go func() {
		select {
		case <-changed:
			cancel(errChanged)
		case <-ctx.Done():
		}
	}()
	if err := sleep.For(ctx, lookEvery); err != nil && !errors.Is(context.Cause(ctx), errChanged) {
		return err
	}
	return nil
}

// try acquires the lease if that is possible now, and otherwise says what there is to wait for.
func (m *Manager) try(ctx context.Context, p *peer, item string) (wait.For, error) {
	if !p.Several {
		return wait.For{}, nil
	}
	if err := m.begin(ctx); err != nil {
		return wait.For{}, err
	}
	defer m.end()
	mine := m.tenure()
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
		mine = m.tenure()
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

// addItem adds an item to what the lease was acquired for. The next renewal writes it to the record, at once but after the item may
// continue: a repair of the records must not wait for the records.
func (m *Manager) addItem(item string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !slices.Contains(m.mine.items, item) {
		m.mine.items, m.mine.unsaved = with(m.mine.items, item), true
		m.look()
	}
}

func with(items []string, item string) []string {
	if slices.Contains(items, item) {
		return items
	}
	return append(slices.Clone(items), item)
}

// tend renews or releases what is held, or adopts a lease that this machine holds without knowing it.
func (m *Manager) tend(ctx context.Context, p *peer) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.end()
	mine, wanted := m.tenure(), m.wanted()
	switch {
	case !mine.holds:
		return m.adopt(ctx, p)
	case wanted == "" && mine.released.IsZero():
		mine.released = m.now()
		m.setTenure(mine)
	case wanted != "" && !mine.released.IsZero():
		mine.released = time.Time{}
		m.setTenure(mine)
	}
	settled := wanted == "" && (m.now().Sub(mine.released) > settleLimit || p.Unwell(ctx, true) == "")
	if settled && m.wanted() == "" { // nor has an item asked since
		_, err := p.lease.Save(ctx, mine.version, record{})
		if err != nil {
			p.adopted = false // a renewal whose answer was lost may have written another version: then it is adopted
		}
		if err == nil || errors.Is(err, lease.ErrLost) {
			m.setTenure(tenure{})
		}
		return err
	}
	if m.now().Sub(mine.renewed) < renewAfter && !mine.unsaved {
		return nil
	}
	err := m.write(ctx, p, mine.version, wanted, mine.items, mine.since)
	if errors.Is(err, lease.ErrLost) {
		m.setTenure(tenure{})
		m.log.Warn("this machine has lost the rollout lease: it has not renewed it in time")
	}
	return err
}

// adopt takes over what this machine held when its agent ended: what was begun then is not finished before all are well.
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

// write acquires or renews the lease. After an error the record may still name this machine, because the answer to this write or to an
// earlier one was lost: then adopt finds out, even if no item asks again.
func (m *Manager) write(ctx context.Context, p *peer, version, item string, items []string, since time.Time) error {
	asked := m.now()
	next, err := p.lease.Save(ctx, version, record{Holder: &holder{Node: p.Self, Item: item, Items: items, Since: since, Renewed: asked}})
	p.adopted = err == nil
	if err != nil {
		return err
	}
	mine := m.tenure()
	mine.holds, mine.version, mine.since, mine.renewed = true, next, since, asked
	mine.items, mine.unsaved = items, false
	m.setTenure(mine)
	return nil
}

// wanted is one of the items that want or use the lease, always the same of several; empty when no item does.
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

// begin and end enclose what reads and writes the record.
func (m *Manager) begin(ctx context.Context) error {
	select {
	case m.ops <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m *Manager) end() { <-m.ops }

func (m *Manager) tenure() tenure {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mine
}

func (m *Manager) setTenure(t tenure) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mine = t
}
