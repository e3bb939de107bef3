// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slipway-project/slipway/internal/core/pin"
)

// world has records and tokens as a registry stores them, and what must hold for them at all times.
type world struct {
	records Records
	tokens  map[string]*Token
	now     time.Time
	first   map[string]Node    // name → the record as it was created
	used    map[string]pin.Pin // token → the machine that it admitted or made wait
}

// After any sequence of events, no two records share a key, an address or pod addresses, immutable fields are unchanged, and a
// token has admitted one machine at most.
func TestHistories(t *testing.T) {
	t.Parallel()
	rapid.Check(t, history)
}

func FuzzHistories(f *testing.F) { f.Fuzz(rapid.MakeFuzz(history)) }

func history(t *rapid.T) {
	w := &world{tokens: map[string]*Token{}, now: noon(), first: map[string]Node{}, used: map[string]pin.Pin{}}
	p := rules()
	p.PodCIDR, p.NodePodPrefix = netip.MustParsePrefix("10.244.0.0/20"), rapid.SampledFrom([]int{22, 24}).Draw(t, "prefix") // 4 or 16 pod CIDRs
	t.Repeat(map[string]func(*rapid.T){
		"ask":      func(t *rapid.T) { w.ask(t, p) },
		"token":    w.token,
		"register": w.register,
		"approve": func(t *rapid.T) {
			if out, _, err := w.records.Approve(aName(t), w.now); err == nil {
				w.records = out
			}
		},
		"removing": func(t *rapid.T) {
			if n, ok := w.records.Node(aName(t)); ok {
				n.Removing = true
				w.records = w.records.with(n)
			}
		},
		"remove": func(t *rapid.T) {
			name := aName(t)
			w.records = w.records.Remove(name, w.now)
			delete(w.first, name)
		},
		"time": func(t *rapid.T) {
			w.now = w.now.Add(time.Duration(rapid.IntRange(1, 900).Draw(t, "seconds")) * time.Second)
		},
		"": w.check,
	})
}

func aName(t *rapid.T) string {
	return rapid.SampledFrom([]string{"dev-main-0", "dev-main-1", "dev-worker-0", "dev-worker-1", "dev-worker-2", "edge"}).Draw(t, "name")
}

func aKey(t *rapid.T) pin.Pin { return testPin(rapid.IntRange(1, 6).Draw(t, "key")) }

func aPool(t *rapid.T) string {
	return rapid.SampledFrom([]string{"main", "worker", "gpu"}).Draw(t, "pool")
}

func (w *world) token(t *rapid.T) {
	id := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "id")
	if w.tokens[id] != nil {
		return
	}
	token := &Token{ID: id, Pool: aPool(t), Expires: w.now.Add(MaxTTL)}
	if rapid.Bool().Draw(t, "for a name") {
		token.Node = aName(t)
	}
	if rapid.Bool().Draw(t, "for a key") {
		token.Key = aKey(t)
	}
	w.tokens[id] = token
}

func (w *world) register(t *rapid.T) {
	n := rapid.IntRange(0, 20).Draw(t, "index")
	pods, _ := PodCIDR(netip.MustParsePrefix("10.244.0.0/16"), 24, n)
	node := Node{Name: aName(t), Pool: aPool(t), Index: n, PodCIDR: pods}
	if rapid.Bool().Draw(t, "has a key") {
		node.Key = aKey(t)
	}
	if rapid.Bool().Draw(t, "has an address") {
		node.Address = addr(rapid.IntRange(1, 6).Draw(t, "address"))
	}
	w.records, _ = w.records.Register([]Node{node}, w.now)
}

func (w *world) ask(t *rapid.T, p Policy) {
	req := Request{Key: aKey(t), Address: addr(rapid.IntRange(1, 6).Draw(t, "address"))}
	if rapid.Bool().Draw(t, "an address is unreachable") {
		req.Gone = addr(rapid.IntRange(1, 6).Draw(t, "gone"))
	}
	if rapid.Bool().Draw(t, "claims a name") {
		req.ClaimedNode = aName(t)
	}
	var token *Token
	if id := rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "token"); id != "" {
		req.Evidence.TokenID, token = id, w.tokens[id]
	}
	v := Decide(req, w.records, token, p, w.now)
	if v.Refusal != nil && v.Node.Name == "" {
		return
	}
	if was, _ := w.records.ByKey(req.Key); v.Refusal != nil {
		if was.Elsewhere, was.ElsewhereAt = v.Node.Elsewhere, v.Node.ElsewhereAt; was != v.Node {
			t.Fatalf("refused, but %+v became %+v", was, v.Node)
		}
		w.records = w.records.with(v.Node)
		return
	}
	out, err := w.records.Put(v.Node)
	if err != nil {
		t.Fatalf("the decision cannot be stored: %v", err)
	}
	old, knew := w.records.ByKey(req.Key)
	switch {
	case v.UseToken && (token.UsedBy != "" && token.UsedBy != req.Key || !w.now.Before(token.Expires) || token.Pool != v.Node.Pool ||
		token.Node != "" && token.Node != v.Node.Name || token.Key != "" && token.Key != req.Key):
		t.Fatalf("token %+v has admitted %+v at %s, key %s", *token, v.Node, w.now, req.Key)
	case !v.UseToken && v.Wait == nil && !knew:
		t.Fatalf("%s was admitted without a record or token: %+v", req.Key, v.Node)
	case knew && !old.JoinedAt.IsZero() && old.Address.IsValid() && old.Address != req.Address && req.Gone != old.Address:
		t.Fatalf("%s is admitted although a machine with its key may run at %s", req.Key, old.Address)
	case knew && (v.Node.Name != old.Name || old.Removing || v.Wait != nil):
		t.Fatalf("%s has the record %+v and got %+v", req.Key, old, v)
	case v.Wait == nil && v.Node.Key != req.Key, v.Wait != nil && v.Node.PendingKey != req.Key:
		t.Fatalf("%s got the record of another machine: %+v", req.Key, v.Node)
	}
	if v.UseToken {
		if by := w.used[token.ID]; by != "" && by != req.Key {
			t.Fatalf("token %s was used by %s and %s", token.ID, by, req.Key)
		}
		w.used[token.ID], token.UsedBy = req.Key, req.Key
	}
	w.records = out
}

func (w *world) check(t *rapid.T) {
	keys, indexes, addresses, pending := map[pin.Pin]string{}, map[int]string{}, map[netip.Addr]string{}, map[pin.Pin]string{}
	for i, n := range w.records.Nodes {
		if i > 0 && w.records.Nodes[i-1].Name >= n.Name {
			t.Fatalf("%s comes after %s", n.Name, w.records.Nodes[i-1].Name)
		}
		if n.Key != "" && keys[n.Key] != "" || indexes[n.Index] != "" || n.Address.IsValid() && addresses[n.Address] != "" || n.PendingKey != "" && pending[n.PendingKey] != "" {
			t.Fatalf("%s shares its key, index, address or pending key with another of %+v", n.Name, w.records.Nodes)
		}
		keys[n.Key], indexes[n.Index], addresses[n.Address], pending[n.PendingKey] = n.Name, n.Name, n.Name, n.Name
		for _, o := range w.records.Nodes[:i] {
			if n.Key != "" && o.PendingKey == n.Key || o.Key != "" && n.PendingKey == o.Key {
				t.Fatalf("a machine has one name and waits for another: %+v and %+v", o, n)
			}
			if o.PodCIDR.Overlaps(n.PodCIDR) {
				t.Fatalf("pod CIDRs of %s and %s overlap: %s and %s", o.Name, n.Name, o.PodCIDR, n.PodCIDR)
			}
		}
		if w.records.removedKey(n.Key) && n.Key != "" {
			t.Fatalf("%s has the key of a removed machine", n.Name)
		}
		if was, ok := w.first[n.Name]; ok && (was.Index != n.Index || was.PodCIDR != n.PodCIDR || was.Pool != n.Pool) {
			t.Fatalf("record %+v became %+v", was, n)
		}
		w.first[n.Name] = n
	}
}
