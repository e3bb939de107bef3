// SPDX-License-Identifier: Apache-2.0

// Package rosters publishes the cluster's signed roster. On every control plane a [Publisher] watches the node records and etcd's
// voters. The first that sees a change writes the next generation, by compare-and-swap; this needs no leader, because two Publishers
// that see the same state make the same roster. A Publisher that cannot read the records, finds no voter or no endpoint publishes
// nothing.
//
//	node records ─┐
//	etcd voters  ─┴─► roster.From ─► differs? ─► sign ─► record roster/current ─► Current ─► join service ─► nodes
//
// Read [Config] and [Publisher.Current].
package rosters

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/broadcast"
	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/roster"
	"github.com/slipway-project/slipway/internal/sleep"
)

// Kind and name of the roster's record.
const (
	Kind = "roster"
	Name = "current"
)

// Records are the cluster's records; internal/control/registry implements it, and the errors are the registry's.
type Records interface {
	// Nodes returns all records, or an error.
	Nodes(ctx context.Context) ([]admission.Node, error)
	// Watch calls changed when it starts and after each change of a node, from any goroutine, until ctx ends.
	Watch(ctx context.Context, changed func()) error
	// WatchKind does the same for records of another kind.
	WatchKind(ctx context.Context, kind string, changed func()) error
	Load(ctx context.Context, kind, name string, into any) (version string, err error)
	// Save creates the record if version is "". Otherwise it replaces exactly that version.
	Save(ctx context.Context, kind, name, version string, value any) (newVersion string, err error)
}

// Config is what a Publisher needs. All fields that are not optional must be set.
type Config struct {
	CA      *x509.Certificate // the join CA
	Sign    func(digest []byte) ([]byte, error)
	Records Records
	// Voters returns the names of the control planes whose etcd is a voter, or an error if they are unknown.
	Voters func(ctx context.Context) ([]string, error)
	Extra  []string // optional: the host:port of a load balancer
	Log    *slog.Logger

	// Floor is optional. It returns the generation of the roster on this machine's disk. After etcd was restored from a backup, the
	// record may be older than what the nodes have, and they accept no older one.
	Floor func() uint64
	Say   func(problem string) // optional: called when the reason why the roster is not current changes; "" if it is current
	Every time.Duration        // optional: how often to check without a notification; 5 s
}

// Publisher publishes the roster and returns the newest one. Make it with [New]. Safe for concurrent use.
type Publisher struct {
	c       Config
	cluster string
	poke    chan struct{}
	changed broadcast.Signal

	mu         sync.Mutex // guards the fields below
	signed     []byte
	generation uint64
}

// New returns a Publisher. It works only while [Publisher.Run] runs.
func New(c Config) *Publisher {
	if c.Every == 0 {
		c.Every = 5 * time.Second
	}
	if c.Say == nil {
		c.Say = func(string) {}
	}
	if c.Floor == nil {
		c.Floor = func() uint64 { return 0 }
	}
	return &Publisher{c: c, cluster: pin.OfCertificate(c.CA).ClusterID(), poke: make(chan struct{}, 1)}
}

// Current returns the newest roster that this Publisher knows (roster.Signed as JSON) and its generation; nil and 0 if it knows none.
// The channel is closed when there is a newer one.
func (p *Publisher) Current() (signed []byte, generation uint64, changed <-chan struct{}) {
	changed = p.changed.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.signed, p.generation, changed
}

// Poke makes Run check the roster now. It is for changes that no watch reports, such as the promotion of an etcd member.
func (p *Publisher) Poke() {
	select {
	case p.poke <- struct{}{}:
	default:
	}
}

// Run publishes the roster until ctx ends, and then returns nil. It retries after errors.
func (p *Publisher) Run(ctx context.Context) error {
	var running sync.WaitGroup
	running.Go(func() { p.watch(ctx, p.c.Records.Watch) })
	running.Go(func() { // what other control planes publish
		p.watch(ctx, func(ctx context.Context, changed func()) error { return p.c.Records.WatchKind(ctx, Kind, changed) })
	})
	running.Go(func() { p.keep(ctx) })
	running.Wait()
	return nil
}

const (
	retryFirst = 100 * time.Millisecond
	retryLast  = 5 * time.Second
)

func (p *Publisher) watch(ctx context.Context, start func(ctx context.Context, changed func()) error) {
	for {
		err := start(ctx, p.Poke)
		if ctx.Err() != nil {
			return
		}
		p.c.Log.Warn("watch of records ended, starting it again", "error", err)
		if sleep.For(ctx, retryLast) != nil {
			return
		}
	}
}

func (p *Publisher) keep(ctx context.Context) {
	last, retry := "", retryFirst
	for {
		err := p.update(ctx)
		if ctx.Err() != nil {
			return
		}
		text, next := "", p.c.Every
		if err != nil {
			text, next = err.Error(), retry
			retry = min(retry*2, retryLast)
		} else {
			retry = retryFirst
		}
		if text != last {
			last = text
			p.c.Say(text)
			if text != "" {
				p.c.Log.Warn("update of the roster failed, trying again", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-p.poke:
		case <-time.After(next):
		}
	}
}

// tries bounds the conflicts with other Publishers in one update. Each conflict means that another one has published.
const tries = 8

// update takes over the published roster, and publishes the wanted one if that differs.
func (p *Publisher) update(ctx context.Context) error {
	for range tries {
		err := p.updateOnce(ctx)
		if !errors.Is(err, registry.ErrConflict) && !errors.Is(err, registry.ErrExists) {
			return err
		}
	}
	return fmt.Errorf("write roster: conflicts with other control planes in each of %d tries", tries)
}

func (p *Publisher) updateOnce(ctx context.Context) error {
	have, version, trusted, err := p.published(ctx)
	if err != nil {
		return err
	}
	floor := max(p.c.Floor(), p.known())
	if trusted != nil && have.Generation >= p.known() { // even if the wanted roster cannot be computed now
		p.setCurrent(trusted, have.Generation)
	}
	want, err := p.wanted(ctx)
	if err != nil {
		return err
	}
	if trusted != nil && want.Same(have) && have.Generation >= floor {
		return nil
	}
	highest := max(have.Generation, floor)
	if highest == math.MaxUint64 {
		return errors.New("write roster: no generation left")
	}
	want.Generation = highest + 1
	signed, err := p.sign(want)
	if err != nil {
		return fmt.Errorf("sign roster: %w", err)
	}
	if _, err := p.c.Records.Save(ctx, Kind, Name, version, signed); err != nil {
		return fmt.Errorf("write roster: %w", err)
	}
	text, err := json.Marshal(signed)
	if err != nil {
		return fmt.Errorf("write roster: %w", err)
	}
	p.c.Log.Info("roster published", "generation", want.Generation, "api", len(want.API), "nodes", len(want.Nodes))
	p.setCurrent(text, want.Generation)
	return nil
}

// maxClaim is how far a roster without a valid signature can raise the generation: it must not use up all generations.
const maxClaim = 1 << 32

// published returns the roster in the records. text is nil if there is none, or one that nodes would refuse. Of the latter only the
// generation counts: the next roster must be newer than any that a node may have accepted.
func (p *Publisher) published(ctx context.Context) (have roster.Roster, version string, text []byte, err error) {
	var signed roster.Signed
	version, err = p.c.Records.Load(ctx, Kind, Name, &signed)
	if errors.Is(err, registry.ErrNotFound) {
		return roster.Roster{}, "", nil, nil
	}
	if err != nil {
		return roster.Roster{}, "", nil, fmt.Errorf("read roster: %w", err)
	}
	have, err = signed.Open(p.c.CA)
	if err == nil && have.Usable() {
		text, err = json.Marshal(signed)
		return have, version, text, err
	}
	p.c.Log.Error("the published roster is invalid, replacing it", "error", err)
	var claim struct {
		Generation uint64 `json:"generation"`
	}
	if err := json.Unmarshal(signed.Body, &claim); err != nil || claim.Generation > p.known()+maxClaim {
		claim.Generation = 0 // Floor has a better value
	}
	return roster.Roster{Generation: claim.Generation}, version, nil, nil
}

// wanted returns the roster for the current state of the cluster, without a generation.
func (p *Publisher) wanted(ctx context.Context) (roster.Roster, error) {
	nodes, err := p.c.Records.Nodes(ctx)
	if err != nil {
		return roster.Roster{}, fmt.Errorf("read node records: %w", err)
	}
	voters, err := p.c.Voters(ctx)
	if err != nil {
		return roster.Roster{}, fmt.Errorf("find etcd's voters: %w", err)
	}
	r := roster.From(p.cluster, nodes, voters, p.c.Extra)
	if !r.Usable() { // a roster must have an endpoint
		return roster.Roster{}, errors.New("make roster: no control plane with an etcd voter has a record with an address")
	}
	return r, nil
}

func (p *Publisher) sign(r roster.Roster) (roster.Signed, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return roster.Signed{}, err
	}
	digest := roster.Digest(body)
	signature, err := p.c.Sign(digest[:])
	if err != nil {
		return roster.Signed{}, err
	}
	s := roster.Signed{Body: body, Signature: signature}
	_, err = s.Open(p.c.CA) // nodes would refuse a roster that another key has signed, and get no further changes
	return s, err
}

// known returns the generation of the current roster.
func (p *Publisher) known() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.generation
}

// setCurrent sets the current roster, unless there is a newer one.
func (p *Publisher) setCurrent(signed []byte, generation uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.signed != nil && generation <= p.generation {
		return
	}
	p.signed, p.generation = signed, generation
	p.changed.Notify()
}
