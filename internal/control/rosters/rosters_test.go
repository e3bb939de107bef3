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

// bench is what the roster managers of several control planes share: the cluster's records and its join CA.
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

// run starts a keeper, which ends with the test.
func (b *bench) run(t *testing.T, c Config) *Publisher {
	k := New(c)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := k.Run(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { <-ended })
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

// expect waits until all goroutines are idle, and compares generation, API servers and nodes.
func (b *bench) expect(t *testing.T, k *Publisher, generation uint64, api, nodes []string) {
	t.Helper()
	synctest.Wait()
	text, got, _ := k.Current()
	if text == nil {
		t.Fatal("got no roster")
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
		t.Errorf("got generation %d, %d in the roster, want %d", got, r.Generation, generation)
	}
}

// Three control planes publish the same roster, and every change is one generation.
func TestKeepers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		var keepers []*Publisher
		for range 3 {
			keepers = append(keepers, b.run(t, b.config(t)))
		}
		synctest.Wait()
		if text, generation, _ := keepers[0].Current(); text != nil || generation != 0 {
			t.Errorf("without nodes: got roster %s, want none", text)
		}
		b.vote([]string{"a"}, nil)
		_, _, changed := keepers[2].Current()
		must(t, b.records.Register(t.Context(), []admission.Node{record("a", 0)}))
		time.Sleep(10 * time.Second) // fake clock
		b.expect(t, keepers[0], 1, []string{"10.89.0.10:6443"}, []string{"a"})
		select {
		case <-changed:
		default:
			t.Error("the channel was not closed after a change")
		}
		must(t, b.records.Register(t.Context(), []admission.Node{record("b", 1), record("c", 2)}))
		for _, k := range keepers {
			b.expect(t, k, 2, []string{"10.89.0.10:6443"}, []string{"a", "b", "c"})
		}
		b.vote([]string{"a", "b"}, nil)
		keepers[1].Poke()
		for _, k := range keepers {
			b.expect(t, k, 3, []string{"10.89.0.10:6443", "10.89.0.11:6443"}, []string{"a", "b", "c"})
		}
		b.vote([]string{"a", "b", "c"}, nil) // without a poke: the periodic check finds it
		time.Sleep(6 * time.Second)
		for _, k := range keepers {
			b.expect(t, k, 4, []string{"10.89.0.10:6443", "10.89.0.11:6443", "10.89.0.12:6443"}, []string{"a", "b", "c"})
		}
		time.Sleep(time.Hour)
		b.expect(t, keepers[0], 4, []string{"10.89.0.10:6443", "10.89.0.11:6443", "10.89.0.12:6443"}, []string{"a", "b", "c"})
	})
}

// Unknown is not empty: if records or voters cannot be read, the roster stays as it is, and Say reports it.
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
		"unknown voters":            {func(b *bench) { b.vote([]string{"x"}, nil) }},
		"voters without an address": {func(b *bench) { b.vote([]string{"late"}, nil) }},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				late := record("late", 5)
				late.Address = netip.Addr{}
				b.vote([]string{"a"}, nil)
				must(t, b.records.Register(t.Context(), []admission.Node{record("a", 0), record("b", 1), late}))
				var said atomic.Value
				c := b.config(t)
				c.Say = func(text string) { said.Store(text) }
				k := b.run(t, c)
				b.expect(t, k, 1, []string{"10.89.0.10:6443"}, []string{"a", "b"})
				tt.trouble(b)
				time.Sleep(time.Minute)
				b.expect(t, k, 1, []string{"10.89.0.10:6443"}, []string{"a", "b"})
				if text, _ := said.Load().(string); text == "" {
					t.Error("got no report of the problem")
				}
				b.store.SetFault(nil)
				b.vote([]string{"a", "b"}, nil)
				time.Sleep(10 * time.Second)
				b.expect(t, k, 2, []string{"10.89.0.10:6443", "10.89.0.11:6443"}, []string{"a", "b"})
				if said.Load() != "" {
					t.Errorf("got report %q after the problem, want none", said.Load())
				}
			})
		})
	}
}

// A stored roster that is not this cluster's is replaced by one that is newer than it and than those that nodes have.
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
		"an older roster":               {func(b *bench) roster.Signed { return stored(b, 7, true) }, 0, 8},
		"etcd from a backup":            {func(b *bench) roster.Signed { return stored(b, 7, true) }, 20, 21},
		"forged":                        {func(b *bench) roster.Signed { return stored(b, 7, false) }, 0, 8},
		"forged, from a backup":         {func(b *bench) roster.Signed { return stored(b, 7, false) }, 20, 21},
		"forged, to use up generations": {func(b *bench) roster.Signed { return stored(b, math.MaxUint64-1, false) }, 3, 4},
		"forged, and not even a roster": {func(*bench) roster.Signed { return roster.Signed{Body: []byte("{")} }, 3, 4},
		"no roster":                     {nil, 0, 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				b.vote([]string{"a"}, nil)
				must(t, b.records.Register(t.Context(), []admission.Node{record("a", 0)}))
				if tt.stored != nil {
					_, err := b.records.Save(t.Context(), Kind, Name, "", tt.stored(b))
					must(t, err)
				}
				c := b.config(t)
				c.Floor = func() uint64 { return tt.floor }
				b.expect(t, b.run(t, c), tt.want, []string{"10.89.0.10:6443"}, []string{"a"})
			})
		})
	}
}

// Control planes that write at the same time and lose answers never publish two rosters of one generation: nodes order
// rosters by their generation, so each generation must have one content.
func TestOneContentPerGeneration(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
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
		var watchers sync.WaitGroup
		t.Cleanup(watchers.Wait)
		for range 5 {
			k := b.run(t, b.config(t))
			watchers.Go(func() {
				for {
					text, generation, changed := k.Current()
					if text != nil {
						r := b.open(t, text)
						content := fmt.Sprint(r.API, r.Nodes)
						mu.Lock()
						if have, ok := seen[generation]; ok && have != content {
							t.Errorf("generation %d: got contents %s and %s", generation, have, content)
						}
						seen[generation] = content
						mu.Unlock()
					}
					select {
					case <-t.Context().Done():
						return
					case <-changed:
					}
				}
			})
		}
		for i := range 30 {
			_ = b.records.Register(t.Context(), []admission.Node{record(fmt.Sprintf("n%d", i), byte(i))})
			b.vote([]string{"n0", fmt.Sprintf("n%d", i)}, nil)
			time.Sleep(300 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if len(seen) < 10 {
			t.Errorf("got %d generations, want at least 10", len(seen))
		}
	})
}

// A roster signed by a key that is not the join CA's must not be published.
func TestWrongKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.vote([]string{"a"}, nil)
		must(t, b.records.Register(t.Context(), []admission.Node{record("a", 0)}))
		other := newBench(t)
		c := b.config(t)
		c.Sign = other.config(t).Sign
		k := b.run(t, c)
		time.Sleep(time.Minute)
		if text, _, _ := k.Current(); text != nil {
			t.Errorf("got roster %s, want none", text)
		}
		if _, err := b.records.Load(t.Context(), Kind, Name, &roster.Signed{}); !errors.Is(err, registry.ErrNotFound) {
			t.Errorf("stored roster: got %v, want ErrNotFound", err)
		}
	})
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}
