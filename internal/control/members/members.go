// SPDX-License-Identifier: Apache-2.0

// Package members adds control planes to etcd and removes them, one at a time. A change needs the membership lease, a record of the
// cluster (package control/lease) that its holder must renew. If the holder of the lease stops, another control plane undoes what
// its join has begun. core/membership decides which change is safe; this package asks etcd, writes the record and makes the change.
//
// It removes a voter only in Leave, and never removes a learner whose node still renews the lease. It never compares the clocks of
// two machines: the lease has expired when this machine has seen it unchanged for its whole life.
//
//	         Admit                AddLearner              node: started           caught up
//	(free) ─────────► taken ─────────────────► added ─────────────────► added ───────────────► (free), voter
//	   ▲                │    not renewed          │
//	   └── clearing ◄───┴─────────────────────────┘   the learner is removed
//
// Read [Manager], [Manager.Admit] and [membership.Progress].
//
//	m.Admit(ctx, node, false) → Wait{What: "the membership lease", Who: "dev-main-1, which joins since 10:31:02"}
//	m.Admit(ctx, node, false) → Permit "ETCD_INITIAL_CLUSTER=dev-main-0=https://…,dev-main-2=https://…\n…"
//	m.Admit(ctx, node, true)  → Promoted
package members

import (
	"context"
	"errors"
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

// A single change of the members takes at most 5 s (internal/etcd), which is less than half of the lease's life.
const (
	leaseLife    = 15 * time.Second // the lease expires if it is not renewed for this long
	renewAfter   = 3 * time.Second  // each renewal is a write to etcd
	clearingLife = 5 * time.Second  // shorter, because two machines may clear at the same time without harm
	patience     = 10 * time.Minute // a holder that makes no progress for this long loses the lease, even if it renews it
	penalty      = 30 * time.Second // how long it then lets others acquire the lease first
	grace        = 10 * time.Second // before a learner without a lease is removed: its record may be delayed
	pollEvery    = 5 * time.Second
	forgetAfter  = 10 * time.Second // a node that stops asking here may ask another control plane
	quiet        = 30 * time.Second // before repeated failures are logged
)

// Viewer reads the members from this machine's own etcd member, after a quorum has confirmed them. It never returns an empty list
// without an error.
type Viewer interface {
	Members(ctx context.Context) ([]membership.Member, error)
	// Health fills in Healthy and Leader. A member that does not answer is unhealthy; that is not an error.
	Health(ctx context.Context, m membership.Member) (membership.Member, error)
}

// Changer changes the members. After an error that is not one of package membership, it is unknown whether the change was made.
type Changer interface {
	AddLearner(ctx context.Context, peerURL string) (id uint64, all []membership.Member, err error)
	Promote(ctx context.Context, id uint64) error
	Remove(ctx context.Context, id uint64) error
	// MoveLeader makes another voter the leader if awayFrom is the leader.
	MoveLeader(ctx context.Context, awayFrom uint64) error
}

// Etcd is implemented by the client of internal/etcd.
type Etcd interface {
	Viewer
	Changer
}

// Records are the cluster's records; internal/control/registry implements it, and the errors are the registry's.
type Records interface {
	Load(ctx context.Context, kind, name string, into any) (version string, err error)
	// Save creates the record if version is "". Otherwise it replaces exactly that version.
	Save(ctx context.Context, kind, name, version string, value any) (newVersion string, err error)
	Nodes(ctx context.Context) ([]admission.Node, error)
	// WatchKind calls changed after each change of a record of the kind, until ctx ends. The Manager also polls.
	WatchKind(ctx context.Context, kind string, changed func()) error
}

// Config is what a Manager needs.
type Config struct {
	Etcd    Etcd
	Records Records
	Log     *slog.Logger
	Now     func() time.Time // optional: time.Now
	// Promoted is optional. Admit calls it each time it finds that the node is a voter, because no watch of the records reports that.
	Promoted func()
}

// Manager makes all changes of etcd's members. Each control plane has one. Safe for concurrent use.
type Manager struct {
	etcd    Etcd
	records Records
	log     *slog.Logger
	now     func() time.Time
	lease   *lease.Lease

	onPromoted func() // may be nil

	mu        sync.Mutex           // guards the fields below
	seen      sighting             // of the lease's holder
	unclaimed map[uint64]time.Time // learners that no lease names, since when
	penalized map[string]time.Time // nodes that lost the lease without progress, until when they let others go first
	reported  map[uint64]bool      // voters that were reported because no node has their name
	waiting   map[string]waiting   // node → what it was last told to wait for
}

// waiting is a wait and the last time at which the node was told about it.
type waiting struct {
	wait.For
	at time.Time
}

// New returns a manager. It works only while Run runs.
func New(c Config) *Manager {
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Manager{
		etcd: c.Etcd, records: c.Records, log: c.Log, now: c.Now, onPromoted: c.Promoted, lease: lease.New(c.Records, recordName, c.Now),
		unclaimed: map[uint64]time.Time{}, penalized: map[string]time.Time{}, reported: map[uint64]bool{}, waiting: map[string]waiting{},
	}
}

// PeerURL returns the URL at which a node's etcd serves its peers.
func PeerURL(node admission.Node) (string, error) {
	if !node.Address.IsValid() {
		return "", fmt.Errorf("find peer address of %s: its record has no address before it has joined", node.Name)
	}
	host := node.Address.String()
	if node.Address.Is6() {
		host = "[" + host + "]"
	}
	return "https://" + host + ":2380", nil
}

// Run watches the membership lease until ctx ends. It clears an expired lease, removes learners that belong to no join, and reports
// voters that belong to no node. Every control plane runs it.
func (m *Manager) Run(ctx context.Context) error {
	poke := make(chan struct{}, 1)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		err := m.records.WatchKind(ctx, lease.Kind, func() {
			select {
			case poke <- struct{}{}:
			default:
			}
		})
		if err != nil && ctx.Err() == nil {
			m.log.Warn("watch of leases ended; the membership lease is only polled from now on", "err", err)
		}
		return nil
	})
	g.Go(func() error {
		m.poll(ctx, poke)
		return nil
	})
	if err := g.Wait(); err != nil {
		return fmt.Errorf("watch membership lease: %w", err)
	}
	return nil
}

func (m *Manager) poll(ctx context.Context, poke <-chan struct{}) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var failing time.Time // since when; etcd needs some time when the machine starts
	logged := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-poke:
		case <-timer.C:
		}
		next, err := m.check(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil || errors.Is(err, lease.ErrLost):
			failing, logged = time.Time{}, ""
		case failing.IsZero():
			failing = m.now()
		case m.now().Sub(failing) > quiet && err.Error() != logged:
			logged = err.Error()
			m.log.Warn("check of the membership lease failed", "err", err, "since", failing)
		}
		timer.Reset(next)
	}
}

// check does what the state of the lease and the members requires now, and returns when to check again.
func (m *Manager) check(ctx context.Context) (next time.Duration, err error) {
	s, err := m.load(ctx)
	if err != nil {
		return pollEvery, err
	}
	if s.Holder != nil {
		if left := m.left(s); left > 0 {
			return min(left, pollEvery), nil
		}
		return time.Second, m.clear(ctx, &s)
	}
	all, err := m.etcd.Members(ctx)
	if err != nil {
		return pollEvery, err
	}
	if err := m.reportUnknownVoters(ctx, all); err != nil {
		return pollEvery, err
	}
	dead := m.orphans(all, nil)
	for _, l := range all {
		if len(dead) == 0 || l.ID != dead[0] {
			continue
		}
		// Take the lease in its name: no join may count on the learner in the meantime.
		s.Holder = &holder{Node: l.String(), PeerURL: l.PeerURL, Member: membership.Hex(l.ID), Phase: clearing, Since: m.now()}
		return time.Second, m.clear(ctx, &s)
	}
	return pollEvery, m.recordVoters(ctx, &s, all)
}

// recordVoters writes down which voter belongs to which node. After a voter was removed, its node's data is then known to be stale.
func (m *Manager) recordVoters(ctx context.Context, s *snapshot, all []membership.Member) error {
	changed := false
	for _, v := range all {
		if v.Name != "" && !v.Learner && s.Known[v.Name] != membership.Hex(v.ID) {
			s.Known[v.Name], changed = membership.Hex(v.ID), true
		}
	}
	if !changed {
		return nil
	}
	return m.save(ctx, s)
}

// reportUnknownVoters logs each voter that belongs to no node once. It removes none: perhaps only the node's record is missing.
func (m *Manager) reportUnknownVoters(ctx context.Context, all []membership.Member) error {
	nodes, err := m.records.Nodes(ctx)
	if err != nil {
		return fmt.Errorf("read the nodes' records: %w", err)
	}
	known := map[string]bool{}
	for _, n := range nodes {
		known[n.Name] = true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range all {
		if v.Learner || known[v.Name] || len(nodes) == 0 || m.reported[v.ID] {
			continue
		}
		m.reported[v.ID] = true
		m.log.Warn("a voter of etcd belongs to no node; if it is gone for good, run slipway node remove", "member", membership.Hex(v.ID), "name", v.Name, "peer", v.PeerURL)
	}
	return nil
}

// State is a node's membership state in etcd.
type State struct {
	Member  string // "voter" or "learner"; empty if the node is not a member
	ID      string // hex
	Healthy bool
	Leader  bool
	Unknown bool      // the member belongs to no node that has a record
	Wait    *wait.For // what the node's join waits for, if the node asks this control plane; else nil
}

// Status returns the state of every member and of every node that waits to become one. The key is the node's name, or etcd's name of
// a member that belongs to no node.
func (m *Manager) Status(ctx context.Context) (map[string]State, error) {
	nodes, err := m.records.Nodes(ctx)
	if err != nil {
		return nil, fmt.Errorf("read etcd's members: read the nodes' records: %w", err)
	}
	all, err := m.etcd.Members(ctx)
	if err != nil {
		return nil, err
	}
	all, err = m.health(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("read etcd's members: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	out, seen := map[string]State{}, map[uint64]bool{}
	for _, n := range nodes {
		peer, _ := PeerURL(n) // without an address the name decides
		own, ok := membership.Find(all, n.Name, peer)
		wait := m.waitLocked(n.Name, ok && !own.Learner && own.Name == n.Name)
		if !ok && wait == nil {
			continue
		}
		var st State
		if ok {
			st, seen[own.ID] = stateOf(own), true
		}
		st.Wait = wait
		out[n.Name] = st
	}
	for _, one := range all {
		if !seen[one.ID] {
			st := stateOf(one)
			st.Unknown = true
			out[one.String()] = st
		}
	}
	return out, nil
}

// waitLocked returns what the node waits for. A node that is a voter, or that has stopped asking here, has made progress through
// another control plane.
func (m *Manager) waitLocked(node string, isVoter bool) *wait.For {
	w, ok := m.waiting[node]
	if !ok {
		return nil
	}
	if isVoter || m.now().Sub(w.at) > forgetAfter {
		delete(m.waiting, node)
		return nil
	}
	return &w.For
}

func stateOf(one membership.Member) State {
	st := State{Member: "voter", ID: membership.Hex(one.ID), Healthy: one.Healthy, Leader: one.Leader}
	if one.Learner {
		st.Member = "learner"
	}
	return st
}

// health asks all members for their health at the same time.
func (m *Manager) health(ctx context.Context, all []membership.Member) ([]membership.Member, error) {
	out := make([]membership.Member, len(all))
	g, ctx := errgroup.WithContext(ctx)
	for i, one := range all {
		g.Go(func() (err error) {
			out[i], err = m.etcd.Health(ctx, one)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return out, nil
}
