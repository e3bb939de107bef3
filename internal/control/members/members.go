// SPDX-License-Identifier: Apache-2.0

// Package members brings control planes into etcd and out of it, one at a time. Whose turn it is stands in one record of the
// cluster, the slot: its holder has to be heard of again and again, and when it is not, whatever its join has begun is taken
// back. What is safe decides core/membership; this package asks, writes down and does it.
//
// It never removes a voter except in Leave, and never a learner whose node is heard of. It never believes a clock of another
// machine: a slot has expired when this machine has seen it unchanged for its whole life.
//
//	          Admit                AddLearner              node: started           caught up
//	(free) ──────────► taken ─────────────────► added ─────────────────► added ───────────────► (free), voter
//	   ▲                 │    not heard of       │
//	   └── clearing ◄────┴───────────────────────┘   the learner is removed
//
// Read [Manager], [Manager.Admit] and [membership.Progress].
//
//	m.Admit(ctx, node, false) → Wait{For: "the etcd slot", Provider: "dev-main-1, which joins since 10:31:02"}
//	m.Admit(ctx, node, false) → Permit "ETCD_INITIAL_CLUSTER=dev-main-0=https://…,dev-main-2=https://…\n…"
//	m.Admit(ctx, node, true)  → Promoted
package members

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/control/lease"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/membership"
	"github.com/slipway-project/slipway/internal/core/wait"
)

// How long things last. A change's own deadline (5 s, internal/etcd) is less than half of the slot's life.
const (
	slotTTL    = 15 * time.Second // a holder that is not heard of for so long has lost its turn
	renewAfter = 3 * time.Second  // no sooner, for each renewal is a write to etcd
	clearTTL   = 5 * time.Second  // whoever clears may have died as well, and clearing twice does no harm
	patience   = 10 * time.Minute // a holder that is heard of but gets nowhere has lost its turn, too
	penalty    = 30 * time.Second // … and lets others go first
	grace      = 10 * time.Second // a learner that no slot speaks of may have been added by somebody slow
	lookEvery  = 5 * time.Second
	forget     = 10 * time.Second // who has not asked again for so long waits here no more: it may ask another control plane
	quiet      = 30 * time.Second // before failing looks are told of
)

// Viewer sees the members: the own member's view, which a quorum has confirmed. Unknown is an error, never an empty list.
type Viewer interface {
	Members(ctx context.Context) ([]membership.Member, error)
	// Health fills in Healthy and Leader. Whoever does not answer is not healthy, without an error.
	Health(ctx context.Context, m membership.Member) (membership.Member, error)
}

// Changer changes the members. Its errors are membership's, or mean that nobody knows whether it was done.
type Changer interface {
	AddLearner(ctx context.Context, peerURL string) (id uint64, all []membership.Member, err error)
	Promote(ctx context.Context, id uint64) error
	Remove(ctx context.Context, id uint64) error
	MoveLeader(ctx context.Context, awayFrom uint64) error
}

// Etcd is what internal/etcd's client can do.
type Etcd interface {
	Viewer
	Changer
}

// Records are the cluster's (internal/control/registry). Save with version "" creates; it and Load fail with the registry's errors.
type Records interface {
	Load(ctx context.Context, kind, name string, into any) (version string, err error)
	Save(ctx context.Context, kind, name, version string, value any) (newVersion string, err error)
	Nodes(ctx context.Context) ([]admission.Node, error)
	// WatchKind calls changed after changes, until ctx ends. It is a hint: nothing is missed for long without it.
	WatchKind(ctx context.Context, kind string, changed func()) error
}

// Config is what a Manager needs.
type Config struct {
	Etcd    Etcd
	Records Records
	Log     *slog.Logger
	Now     func() time.Time // optional: time.Now
	// Promoted, if set, is called after each Admit that found the node a voter: no watch of the records reports that.
	Promoted func()
}

// Manager is the one way into etcd and out of it. Each control plane has one. Safe for concurrent use.
type Manager struct {
	etcd    Etcd
	records Records
	log     *slog.Logger
	now     func() time.Time
	slot    *lease.Lease

	onPromoted func() // may be nil

	mu      sync.Mutex           // guards the fields below
	seen    sighting             // of the slot's holder
	lonely  map[uint64]time.Time // learners without a slot, since when
	tired   map[string]time.Time // nodes that lost their turn, until when they let others go first
	told    map[string]bool      // what was logged once
	waiting map[string]waiting   // node → what it was last told to wait for
}

// waiting is a wait, and when it was told.
type waiting struct {
	wait.For
	at time.Time
}

// New makes a manager. Run has to run beside it.
func New(c Config) *Manager {
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Manager{
		etcd: c.Etcd, records: c.Records, log: c.Log, now: c.Now, onPromoted: c.Promoted, slot: lease.New(c.Records, name, c.Now),
		lonely: map[uint64]time.Time{}, tired: map[string]time.Time{}, told: map[string]bool{}, waiting: map[string]waiting{},
	}
}

// PeerURL is where a node's etcd talks to the others.
func PeerURL(node admission.Node) (string, error) {
	if !node.Address.IsValid() {
		return "", fmt.Errorf("find peer address of %s: its record has no address: it joins first", node.Name)
	}
	host := node.Address.String()
	if node.Address.Is6() {
		host = "[" + host + "]"
	}
	return "https://" + host + ":2380", nil
}

// ask lets all members say themselves how they are.
func (m *Manager) ask(ctx context.Context, all []membership.Member) ([]membership.Member, error) {
	asked := make([]membership.Member, len(all))
	g, ctx := errgroup.WithContext(ctx)
	for i, one := range all {
		g.Go(func() (err error) {
			asked[i], err = m.etcd.Health(ctx, one)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return asked, nil
}
