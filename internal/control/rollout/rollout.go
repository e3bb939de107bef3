// SPDX-License-Identifier: Apache-2.0

// Package rollout gives the turn among a cluster's control planes: whoever exchanges a running part of its control plane because of a
// change takes it first, keeps it until that part is ready again and etcd's voters are all well, and passes it on. It stands in a
// slot of the cluster's records (control/slot), so whoever dies with it has lost it half a minute later; an agent that
// begins anew in time has it still, until what was begun with it is ready. The package never starts or stops anything, and never takes
// "no answer" for "no": who asks waits, with a reason, and reconcile says when that ends.
//
//	          Take                 others well              pass             own parts well
//	(free) ────────► held, waiting ───────────► held, at work ────► settling ────────────► (free)
//	   ▲                  │ for two minutes at most: a dead machine does not stop the others for ever
//	   └──────────────────┴───────── not heard of for half a minute ──────┘
//
// Read [Keeper] and [Cluster].
//
//	k := turns.New("control-plane", log, time.Now)
//	go k.Run(ctx, turns.Cluster{Self: "dev-main-0", Several: true, Records: records, Unwell: unwell})
//	pass, err := k.Take(ctx, "control-plane", "unit/etcd", waiting)  // "dev-main-1 restarts unit/etcd since 10:31:02"
package rollout

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/control/lease"
)

// How long things last.
const (
	life       = 30 * time.Second // a holder that is not heard of for so long has lost its turn
	renewAfter = 3 * time.Second
	certain    = life - 10*time.Second // not renewed for so long, a holder does not count on its turn any more
	lookEvery  = 500 * time.Millisecond
	patience   = 2 * time.Minute // with another control plane that is unwell
	settling   = time.Minute     // with the own one, after what was exchanged is ready
)

// Cluster is what a control plane knows of the others while its control role runs.
type Cluster struct {
	Self    string // the node's name
	Several bool   // there are other control planes; without any, it is always one's turn
	Records lease.Records
	// Unwell says which control plane is not well, and why; nothing when all are. Of the own one it is asked only with own set.
	Unwell func(ctx context.Context, own bool) string
}

// Keeper asks for one machine's turns, for as long as the agent lives. The control role comes and goes with each plan; what was
// taken stays taken. Safe for concurrent use.
type Keeper struct {
	turn string
	log  *slog.Logger
	now  func() time.Time

	ops  chan struct{} // holds a value while somebody reads or writes the slot
	poke chan struct{}

	mu      sync.Mutex // guards the fields below
	member  *member    // nil while the control role does not run
	changed chan struct{}
	claims  map[string]int // items that want the turn or use it, and how often they say so
	held    map[string]int // items that are not known to be ready; they count if the turn was taken for them
	mine    tenure
}

// member is this machine's place among the control planes during one run of the control role.
type member struct {
	Cluster
	slot    *lease.Lease
	adopted bool // what this machine holds without knowing, since before its agent began or since a lost answer, has been looked for; guarded by Keeper.ops
}

// tenure is how this machine has the turn.
type tenure struct {
	holds   bool
	version string
	since   time.Time // when it was taken, by this machine's clock
	renewed time.Time
	passed  time.Time // since when nobody here needs it
	items   []string  // what it was taken for
	unsaved bool      // the record does not know all of them
}

type record struct {
	Holder *holder `json:"holder,omitempty"` // nil: the turn is free
}

type holder struct {
	Node string `json:"node"`
	Item string `json:"item"` // what it exchanges; the first, if there are several
	// Items are all that the turn was taken for: the next agent keeps it until they are ready.
	Items []string `json:"items,omitempty"`
	// For people only, and to make each renewal another version.
	Since   time.Time `json:"since"`
	Renewed time.Time `json:"renewed"`
}

func (h *holder) String() string {
	return fmt.Sprintf("%s restarts %s since %s", h.Node, h.Item, h.Since.UTC().Format(time.TimeOnly))
}

// New makes a keeper of the named turn. Until Run runs, everybody waits.
func New(turn string, log *slog.Logger, now func() time.Time) *Keeper {
	return &Keeper{
		turn: turn, log: log, now: now, ops: make(chan struct{}, 1), poke: make(chan struct{}, 1),
		changed: make(chan struct{}), claims: map[string]int{}, held: map[string]int{},
	}
}

// Run renews and passes on what is held, until ctx ends.
func (k *Keeper) Run(ctx context.Context, c Cluster) error {
	m := &member{Cluster: c, slot: lease.New(c.Records, k.turn, k.now)}
	k.enter(m)
	defer k.enter(nil)
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for c.Several {
		if err := k.keep(ctx, m); err != nil && ctx.Err() == nil {
			k.log.Debug("the turn is not kept", "turn", k.turn, "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-k.poke:
		}
	}
	<-ctx.Done()
	return nil
}

func (k *Keeper) enter(m *member) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.member = m
	close(k.changed)
	k.changed = make(chan struct{})
}

func (k *Keeper) current() (m *member, changed <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.member, k.changed
}

// note puts an item down in claims or held, until end is called.
func (k *Keeper) note(where map[string]int, item string) (end func()) {
	k.count(where, item, 1)
	return sync.OnceFunc(func() { k.count(where, item, -1) })
}

func (k *Keeper) count(where map[string]int, item string, by int) {
	k.mu.Lock()
	if where[item] += by; where[item] == 0 {
		delete(where, item)
	}
	k.mu.Unlock()
	k.look()
}

// look makes the keeper see to what it holds now.
func (k *Keeper) look() {
	select {
	case k.poke <- struct{}{}:
	default:
	}
}
