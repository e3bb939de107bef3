// SPDX-License-Identifier: Apache-2.0

package rosters

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/slipway-project/slipway/internal/certtest"
	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/control/registry/registrytest"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/roster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is a cluster's records and what keepers on several control planes of it share.
type bench struct {
	store   *registrytest.Memory
	records *registry.Registry
	ca      certtest.Authority

	mu     sync.Mutex // guards the fields below
	voters []string
	err    error
}

func newBench(t *testing.T) *bench {
	t.Helper()
	store := registrytest.NewMemory()
	return &bench{store: store, records: registry.New(store, time.Now), ca: certtest.NewAuthority(t, "join CA")}
}

func (b *bench) vote(names []string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.voters, b.err = names, err
}

func (b *bench) config(t *testing.T) Config {
	return Config{
		CA: b.ca.Cert, Records: b.records, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Sign: b.ca.SignDigest,
		Voters: func(context.Context) ([]string, error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			return slices.Clone(b.voters), b.err
		},
	}
}

// run starts a keeper, which ends with the test's bubble.
func (b *bench) run(t *testing.T, ctx context.Context, all *sync.WaitGroup, c Config) *Keeper {
	k := New(c)
	all.Go(func() {
		if err := k.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	return k
}

func (b *bench) open(t *testing.T, text []byte) roster.Roster {
	t.Helper()
	var s roster.Signed
	must(t, json.Unmarshal(text, &s))
	r, err := s.Open(b.ca.Cert)
	must(t, err)
	return r
}

func record(name string, i byte) admission.Node {
	return admission.Node{
		Name: name, Pool: "main", Index: int(i), Address: netip.AddrFrom4([4]byte{10, 89, 0, 10 + i}),
		PodCIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, i, 0}), 24),
	}
}

// expect waits until nothing moves, and compares the API and the nodes.
func (b *bench) expect(t *testing.T, k *Keeper, generation uint64, api, nodes []string) {
	t.Helper()
	synctest.Wait()
	text, got, _ := k.Current()
	if text == nil {
		t.Fatal("no roster")
	}
	r := b.open(t, text)
	var gotAPI, gotNodes []string
	for _, a := range r.API {
		gotAPI = append(gotAPI, a.String())
	}
	for _, n := range r.Nodes {
		gotNodes = append(gotNodes, n.Name)
	}
	if diff := cmp.Diff(api, gotAPI); diff != "" {
		t.Errorf("API: %s", diff)
	}
	if diff := cmp.Diff(nodes, gotNodes); diff != "" {
		t.Errorf("nodes: %s", diff)
	}
	if got != generation || r.Generation != got {
		t.Errorf("generation %d, in the roster %d, want %d", got, r.Generation, generation)
	}
}

// The life of a roster on three control planes: all hand out the same, every change is one generation.
func TestKeepers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		defer all.Wait()
		defer cancel()
		var keepers []*Keeper
		for range 3 {
			keepers = append(keepers, b.run(t, ctx, &all, b.config(t)))
		}
		synctest.Wait()
		if text, generation, _ := keepers[0].Current(); text != nil || generation != 0 {
			t.Errorf("a roster from nothing: %s", text)
		}
		b.vote([]string{"a"}, nil)
		_, _, changed := keepers[2].Current()
		must(t, b.records.Register(ctx, []admission.Node{record("a", 0)}))
		time.Sleep(10 * time.Second) // the bubble's
		b.expect(t, keepers[0], 1, []string{"10.89.0.10:6443"}, []string{"a"})
		select {
		case <-changed:
		default:
			t.Error("nobody was told")
		}
		must(t, b.records.Register(ctx, []admission.Node{record("b", 1), record("c", 2)}))
		for _, k := range keepers {
			b.expect(t, k, 2, []string{"10.89.0.10:6443"}, []string{"a", "b", "c"})
		}
		b.vote([]string{"a", "b"}, nil)
		keepers[1].Poke()
		for _, k := range keepers {
			b.expect(t, k, 3, []string{"10.89.0.10:6443", "10.89.0.11:6443"}, []string{"a", "b", "c"})
		}
		b.vote([]string{"a", "b", "c"}, nil) // nobody pokes: found by the regular look
		time.Sleep(6 * time.Second)
		for _, k := range keepers {
			b.expect(t, k, 4, []string{"10.89.0.10:6443", "10.89.0.11:6443", "10.89.0.12:6443"}, []string{"a", "b", "c"})
		}
		time.Sleep(time.Hour)
		b.expect(t, keepers[0], 4, []string{"10.89.0.10:6443", "10.89.0.11:6443", "10.89.0.12:6443"}, []string{"a", "b", "c"})
	})
}

// Unknown is not empty: whatever cannot be told leaves the roster as it is, and Say tells.
func TestUnknown(t *testing.T) {
	t.Parallel()
	down := errors.New("connection refused")
	tests := map[string]struct{ trouble func(b *bench) }{
		"records unreadable": {func(b *bench) {
			b.store.SetFault(func(op registrytest.Op) registrytest.Fault {
				if op.Kind != Kind {
					return registrytest.Fault{Err: down}
				}
				return registrytest.Fault{}
			})
		}},
		"roster unreadable": {func(b *bench) {
			b.store.SetFault(func(registrytest.Op) registrytest.Fault { return registrytest.Fault{Err: down} })
		}},
		"voters unknown":            {func(b *bench) { b.vote(nil, down) }},
		"no voters":                 {func(b *bench) { b.vote(nil, nil) }},
		"voters that nobody knows":  {func(b *bench) { b.vote([]string{"x"}, nil) }},
		"voters without an address": {func(b *bench) { b.vote([]string{"late"}, nil) }},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				ctx, cancel := context.WithCancel(t.Context())
				var all sync.WaitGroup
				defer all.Wait()
				defer cancel()
				late := record("late", 5)
				late.Address = netip.Addr{}
				b.vote([]string{"a"}, nil)
				must(t, b.records.Register(ctx, []admission.Node{record("a", 0), record("b", 1), late}))
				var said atomic.Value
				c := b.config(t)
				c.Say = func(text string) { said.Store(text) }
				k := b.run(t, ctx, &all, c)
				b.expect(t, k, 1, []string{"10.89.0.10:6443"}, []string{"a", "b"})
				tt.trouble(b)
				time.Sleep(time.Minute)
				b.expect(t, k, 1, []string{"10.89.0.10:6443"}, []string{"a", "b"})
				if text, _ := said.Load().(string); text == "" {
					t.Error("nothing is said of the trouble")
				}
				b.store.SetFault(nil)
				b.vote([]string{"a", "b"}, nil)
				time.Sleep(10 * time.Second)
				b.expect(t, k, 2, []string{"10.89.0.10:6443", "10.89.0.11:6443"}, []string{"a", "b"})
				if said.Load() != "" {
					t.Errorf("still says %q", said.Load())
				}
			})
		})
	}
}

// What lies in the store and is not this cluster's is replaced by something newer than it, and than what nodes have taken.
func TestReplaces(t *testing.T) {
	t.Parallel()
	stored := func(b *bench, generation uint64, sign bool) roster.Signed {
		r := roster.From(b.ca.ClusterID(), []admission.Node{record("z", 9)}, []string{"z"}, nil)
		r.Generation = generation
		body, _ := json.Marshal(r)
		s := roster.Signed{Body: body, Signature: []byte("forged")}
		if digest := roster.Digest(body); sign {
			s.Signature, _ = b.ca.SignDigest(digest[:])
		}
		return s
	}
	tests := map[string]struct {
		stored func(b *bench) roster.Signed
		floor  uint64
		want   uint64
	}{
		"an older truth":                 {func(b *bench) roster.Signed { return stored(b, 7, true) }, 0, 8},
		"etcd from a backup":             {func(b *bench) roster.Signed { return stored(b, 7, true) }, 20, 21},
		"forged":                         {func(b *bench) roster.Signed { return stored(b, 7, false) }, 0, 8},
		"forged, from a backup":          {func(b *bench) roster.Signed { return stored(b, 7, false) }, 20, 21},
		"forged, to use up generations":  {func(b *bench) roster.Signed { return stored(b, math.MaxUint64-1, false) }, 3, 4},
		"forged, and not even a roster":  {func(*bench) roster.Signed { return roster.Signed{Body: []byte("{")} }, 3, 4},
		"nothing, as nobody knows a one": {nil, 0, 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				ctx, cancel := context.WithCancel(t.Context())
				var all sync.WaitGroup
				defer all.Wait()
				defer cancel()
				b.vote([]string{"a"}, nil)
				must(t, b.records.Register(ctx, []admission.Node{record("a", 0)}))
				if tt.stored != nil {
					_, err := b.records.Save(ctx, Kind, Name, "", tt.stored(b))
					must(t, err)
				}
				c := b.config(t)
				c.Floor = func() uint64 { return tt.floor }
				b.expect(t, b.run(t, ctx, &all, c), tt.want, []string{"10.89.0.10:6443"}, []string{"a"})
			})
		})
	}
}

// Keepers that all write at once, and lose answers, never publish two rosters of one generation: a node takes whatever it is
// shown in the order of generations, and each generation has one content.
func TestOneContentPerGeneration(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		defer all.Wait()
		defer cancel()
		var calls atomic.Int64
		b.store.SetFault(func(op registrytest.Op) registrytest.Fault {
			f := registrytest.Fault{Delay: time.Duration(calls.Add(1)*7919%50) * time.Millisecond}
			if op.Kind == Kind && op.Verb == "put" && calls.Load()%3 == 0 {
				f.Lost = errors.New("the answer is lost")
			}
			return f
		})
		var mu sync.Mutex
		seen := map[uint64]string{}
		b.vote([]string{"n0"}, nil)
		for range 5 {
			k := b.run(t, ctx, &all, b.config(t))
			all.Go(func() {
				for {
					text, generation, changed := k.Current()
					if text != nil {
						r := b.open(t, text)
						content := fmt.Sprint(r.API, r.Nodes)
						mu.Lock()
						if have, ok := seen[generation]; ok && have != content {
							t.Errorf("generation %d is %s and %s", generation, have, content)
						}
						seen[generation] = content
						mu.Unlock()
					}
					select {
					case <-ctx.Done():
						return
					case <-changed:
					}
				}
			})
		}
		for i := range 30 {
			_ = b.records.Register(ctx, []admission.Node{record(fmt.Sprintf("n%d", i), byte(i))})
			b.vote([]string{"n0", fmt.Sprintf("n%d", i)}, nil)
			time.Sleep(300 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if len(seen) < 10 {
			t.Errorf("only %d generations were seen", len(seen))
		}
	})
}

// A key that is not the join CA's must not lock nodes out.
func TestWrongKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		defer all.Wait()
		defer cancel()
		b.vote([]string{"a"}, nil)
		must(t, b.records.Register(ctx, []admission.Node{record("a", 0)}))
		other := newBench(t)
		c := b.config(t)
		c.Sign = other.config(t).Sign
		k := b.run(t, ctx, &all, c)
		time.Sleep(time.Minute)
		if text, _, _ := k.Current(); text != nil {
			t.Errorf("published %s", text)
		}
		if _, err := b.records.Load(ctx, Kind, Name, &roster.Signed{}); !errors.Is(err, registry.ErrNotFound) {
			t.Errorf("a record was written: %v", err)
		}
	})
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}
