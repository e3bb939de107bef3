// SPDX-License-Identifier: Apache-2.0

// Package rosters keeps the cluster's signed roster: on every control plane a [Keeper] watches the node records and etcd's
// voters, and whoever sees a change first writes the next generation, by compare-and-swap. Nobody is elected for it: two
// Keepers that see the same write the same. It never publishes what it is unsure of: records that cannot be read, a list
// without any voter or a cluster without an endpoint change nothing.
//
//	node records ─┐
//	etcd voters  ─┴─► roster.From ─► differs? ─► sign ─► record roster/current ─► Current ─► join service ─► nodes
//
// Read [Config] and [Keeper.Current].
package rosters

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/roster"
)

// Where the roster lies among the cluster's records.
const (
	Kind = "roster"
	Name = "current"
)

// Records are the cluster's records (internal/control/registry). Their errors are the registry's.
type Records interface {
	// Nodes is all of them, or an error; never a part.
	Nodes(ctx context.Context) ([]admission.Node, error)
	// Watch calls changed at its start and after each change of a node, from any goroutine, until ctx ends.
	Watch(ctx context.Context, changed func()) error
	// WatchKind is the same for records of another kind.
	WatchKind(ctx context.Context, kind string, changed func()) error
	Load(ctx context.Context, kind, name string, into any) (version string, err error)
	// Save creates with version "", otherwise it replaces only that version.
	Save(ctx context.Context, kind, name, version string, value any) (newVersion string, err error)
}

// Config is all that a Keeper needs; what is not optional must be set.
type Config struct {
	CA      *x509.Certificate // the join CA
	Sign    func(digest []byte) ([]byte, error)
	Records Records
	// Voters are the names of the control planes that vote in etcd: those that take part, not those on their way. An error
	// means that nobody knows now.
	Voters func(ctx context.Context) ([]string, error)
	Extra  []string // optional: a load balancer's host:port
	Log    *slog.Logger

	// Floor is optional: the generation that this machine has on its disk. After etcd was restored from a backup the record
	// may be older than what nodes have taken, and they take nothing older.
	Floor func() uint64
	Say   func(problem string) // optional: called when what keeps the roster from being right has changed; "" for nothing
	Every time.Duration        // optional: how often all is looked at without a sign of change; 5 s
}

// Keeper publishes the roster and hands it out. Make it with [New].
type Keeper struct {
	c       Config
	cluster string
	poke    chan struct{}

	mu         sync.Mutex // guards the fields below
	signed     []byte
	generation uint64
	changed    chan struct{}
}

// New only puts together; [Keeper.Run] does the work.
func New(c Config) *Keeper {
	if c.Every == 0 {
		c.Every = 5 * time.Second
	}
	if c.Say == nil {
		c.Say = func(string) {}
	}
	if c.Floor == nil {
		c.Floor = func() uint64 { return 0 }
	}
	return &Keeper{
		c: c, cluster: pin.OfCertificate(c.CA).ClusterID(),
		poke: make(chan struct{}, 1), changed: make(chan struct{}),
	}
}

// Current is the newest roster that this Keeper knows (roster.Signed, JSON) and its generation; nil and 0 before the first. The
// channel is closed when there is another.
func (k *Keeper) Current() (signed []byte, generation uint64, changed <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.signed, k.generation, k.changed
}

// Poke says that something may have changed that no watch tells of, as the promotion of an etcd member.
func (k *Keeper) Poke() {
	select {
	case k.poke <- struct{}{}:
	default: // one is waiting already
	}
}

// Run keeps the roster until ctx ends, and returns nil then. What fails is tried again.
func (k *Keeper) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return k.watch(ctx, k.c.Records.Watch) })
	group.Go(func() error { // what another control plane has published
		return k.watch(ctx, func(ctx context.Context, changed func()) error { return k.c.Records.WatchKind(ctx, Kind, changed) })
	})
	group.Go(func() error { return k.keep(ctx) })
	return group.Wait()
}

func (k *Keeper) watch(ctx context.Context, begin func(ctx context.Context, changed func()) error) error {
	for {
		err := begin(ctx, k.Poke)
		if ended(ctx) {
			return nil
		}
		k.c.Log.Warn("watch of the cluster's records ended, beginning again", "error", err)
		if !wait(ctx, nil, retryLast) {
			return nil
		}
	}
}

// Retries after something failed.
const (
	retryFirst = 100 * time.Millisecond
	retryLast  = 5 * time.Second
)

func (k *Keeper) keep(ctx context.Context) error {
	last, retry := "", retryFirst
	for {
		err := k.look(ctx)
		if ended(ctx) {
			return nil
		}
		text, next := "", k.c.Every
		if err != nil {
			text, next = err.Error(), retry
			retry = min(retry*2, retryLast)
		} else {
			retry = retryFirst
		}
		if text != last {
			last = text
			k.c.Say(text)
			if text != "" {
				k.c.Log.Warn("roster not brought up to date, trying again", "error", err)
			}
		}
		if !wait(ctx, k.poke, next) {
			return nil
		}
	}
}

// ended: whatever failed, failed because of that.
func ended(ctx context.Context) bool { return ctx.Err() != nil }

// wait reports whether there is something to do; false when ctx has ended.
func wait(ctx context.Context, poke <-chan struct{}, limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-poke:
	case <-timer.C:
	}
	return true
}

var errNobody = errors.New("no control plane of etcd's voters has a record with an address")

// wanted is the roster as it should be now, without a generation.
func (k *Keeper) wanted(ctx context.Context) (roster.Roster, error) {
	nodes, err := k.c.Records.Nodes(ctx)
	if err != nil {
		return roster.Roster{}, fmt.Errorf("read node records: %w", err)
	}
	voters, err := k.c.Voters(ctx)
	if err != nil {
		return roster.Roster{}, fmt.Errorf("find etcd's voters: %w", err)
	}
	r := roster.From(k.cluster, nodes, voters, k.c.Extra)
	if !r.Usable() {
		return roster.Roster{}, errNobody // a roster never loses its last endpoint
	}
	return r, nil
}
