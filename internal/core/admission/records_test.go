// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestShare(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		pods string
		bits int
		n    int
		want string
	}{
		"first":         {"10.244.0.0/16", 24, 0, "10.244.0.0/24"},
		"last":          {"10.244.0.0/16", 24, 255, "10.244.255.0/24"},
		"over":          {"10.244.0.0/16", 24, 256, ""},
		"negative":      {"10.244.0.0/16", 24, -1, ""},
		"odd bits":      {"10.128.0.0/9", 26, 5, "10.128.1.64/26"},
		"over bytes":    {"10.0.0.0/8", 23, 257, "10.2.2.0/23"},
		"the whole":     {"10.244.1.0/24", 24, 0, "10.244.1.0/24"},
		"too small":     {"10.244.1.0/24", 23, 0, ""},
		"unmasked":      {"10.244.9.9/16", 24, 3, "10.244.3.0/24"},
		"IPv6":          {"fd00:1::/48", 64, 258, "fd00:1:0:102::/64"},
		"no such bits":  {"10.244.0.0/16", 33, 0, ""},
		"65536 at most": {"fd00::/32", 64, 65536, ""},
	}
	for name, tt := range tests {
		got, ok := Share(netip.MustParsePrefix(tt.pods), tt.bits, tt.n)
		if ok != (tt.want != "") || ok && got.String() != tt.want {
			t.Errorf("%s: %v %v, want %q", name, got, ok, tt.want)
		}
	}
	if Shares(netip.Prefix{}, 24) != 0 {
		t.Error("no range has shares")
	}
}

func TestPutKeepsRecordsApart(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		node Node
		want string
	}{
		"other index":  {Node{Name: "dev-worker-1", Pool: "worker", Index: 9, PodCIDR: share(2)}, "never change"},
		"other range":  {Node{Name: "dev-worker-1", Pool: "worker", Index: 2, PodCIDR: share(9)}, "never change"},
		"other pool":   {Node{Name: "dev-worker-1", Pool: "main", Index: 2, PodCIDR: share(2)}, "never change"},
		"same key":     {Node{Name: "x", Index: 9, PodCIDR: share(9), Key: testPin(1)}, "its key is that of node dev-main-0"},
		"same index":   {Node{Name: "x", Index: 1, PodCIDR: share(9)}, "share 1"},
		"same range":   {Node{Name: "x", Index: 9, PodCIDR: netip.MustParsePrefix("10.244.0.0/20")}, "overlaps"},
		"same address": {Node{Name: "x", Index: 9, PodCIDR: share(9), Address: addr(2)}, "its address"},
	}
	for name, tt := range tests {
		r, err := some().Put(tt.node)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(some(), r, equal()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestRegister(t *testing.T) {
	t.Parallel()
	worker := Node{Name: "dev-worker-1", Pool: "worker", Index: 2, PodCIDR: share(2)}
	tests := map[string]struct {
		document Node
		want     *Node // the record of that name; nil: as it was
		err      string
	}{
		"new": {
			Node{Name: "dev-worker-9", Pool: "worker", Index: 9, PodCIDR: share(9), Key: testPin(7), Address: addr(7)},
			&Node{Name: "dev-worker-9", Pool: "worker", Index: 9, PodCIDR: share(9), Key: testPin(7), Address: addr(7)}, "",
		},
		"new, cannot be pending or leaving": {
			Node{Name: "dev-worker-9", Pool: "worker", Index: 9, PodCIDR: share(9), PendingKey: testPin(1), Removing: true},
			&Node{Name: "dev-worker-9", Pool: "worker", Index: 9, PodCIDR: share(9)}, "",
		},
		"same":              {worker, nil, ""},
		"fills":             {Node{Name: "dev-worker-1", Key: testPin(7), Address: addr(7)}, &Node{Name: "dev-worker-1", Pool: "worker", Index: 2, PodCIDR: share(2), Key: testPin(7), Address: addr(7)}, ""},
		"other range":       {Node{Name: "dev-worker-1", Pool: "main", Index: 99, PodCIDR: share(99)}, nil, ""},
		"other address":     {Node{Name: "dev-main-0", Address: addr(99)}, nil, ""},
		"key of a node":     {Node{Name: "dev-worker-1", Key: testPin(1)}, nil, "its key is that of node dev-main-0"},
		"address of a node": {Node{Name: "dev-worker-1", Address: addr(1)}, nil, "its address"},
		"index of a node":   {Node{Name: "x", Index: 0, PodCIDR: share(77)}, nil, "share 0"},
		"bad name":          {Node{Name: "X\n"}, nil, "cannot be the name"},
		"bad key":           {Node{Name: "dev-worker-1", Key: "x"}, nil, "not the pin"},
		"removed, same key": {Node{Name: "dev-worker-3", Pool: "worker", Index: 9, PodCIDR: share(9), Key: testPin(9)}, nil, ""},
		"removed, no key":   {Node{Name: "dev-worker-3", Pool: "worker", Index: 9, PodCIDR: share(9)}, nil, ""},
		"removed, new key": {
			Node{Name: "dev-worker-3", Pool: "worker", Index: 9, PodCIDR: share(9), Key: testPin(7)},
			&Node{Name: "dev-worker-3", Pool: "worker", Index: 9, PodCIDR: share(9), Key: testPin(7)}, "",
		},
		"removed key for a record": {Node{Name: "dev-worker-1", Key: testPin(9)}, nil, ""},
		"another key waits": {
			Node{Name: "dev-main-0", Key: testPin(7)},
			&Node{Name: "dev-main-0", Pool: "main", PodCIDR: share(0), Address: addr(1), Key: testPin(1), JoinedAt: noon(), PendingKey: testPin(7), PendingAt: noon()}, "",
		},
		"a third key does not wait": {Node{Name: "dev-worker-0", Key: testPin(7)}, nil, ""},
		"leaving":                   {Node{Name: "dev-worker-2", Key: testPin(7)}, nil, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := some().Register([]Node{tt.document, {Name: "last", Pool: "worker", Index: 100, PodCIDR: share(100)}}, noon())
			if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
			want := some()
			if tt.want != nil {
				want = want.with(*tt.want)
			}
			want = want.with(Node{Name: "last", Pool: "worker", Index: 100, PodCIDR: share(100)})
			if diff := cmp.Diff(want, got, equal()); diff != "" {
				t.Error(diff)
			}
			if again, _ := got.Register([]Node{tt.document}, noon().Add(time.Hour)); cmp.Diff(got, again, equal()) != "" {
				t.Error("the second time changes something")
			}
		})
	}
}

func TestApprove(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"x": "no node x", "dev-main-0": "no machine waits", "dev-worker-2": "being removed"} {
		if _, _, err := some().Approve(name, noon()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r, n, err := some().Approve("dev-worker-0", noon())
	if err != nil || n.Key != testPin(5) || n.PendingKey != "" || n.Index != 1 || n.PodCIDR != share(1) {
		t.Fatalf("%+v, %v", n, err)
	}
	in, old := Request{Key: testPin(5), Address: addr(2)}, Request{Key: testPin(2), Address: addr(2)}
	if v := Decide(in, r, nil, rules(), noon()); v.Node.Name != "dev-worker-0" || v.Wait != nil {
		t.Errorf("the one that was approved: %+v", v)
	}
	if v := Decide(old, r, nil, rules(), noon()); reasonOf(v) != KeyRemoved {
		t.Errorf("the one before: %+v", v)
	}
}

// A machine that was removed keeps its name from others, and its own token from before does not bring it back.
func TestRemove(t *testing.T) {
	t.Parallel()
	r := some().Remove("dev-worker-0", noon())
	if len(r.Nodes) != 3 || len(r.Removed) != 2 || len(some().Nodes) != 4 {
		t.Fatalf("%+v", r)
	}
	if v := Decide(Request{Key: testPin(2), Address: addr(2)}, r, nil, rules(), noon()); reasonOf(v) != KeyRemoved {
		t.Errorf("%+v", v)
	}
	token := with(nil)
	v := Decide(Request{Key: testPin(6), Address: addr(2), Evidence: Evidence{token.ID}}, r, token, rules(), noon())
	if v.Node.Name != "dev-worker-4" {
		t.Errorf("a new machine at the old address: %+v, %v", v.Node, v.Refusal)
	}
	back := with(func(t *Token) { t.Key = testPin(2) })
	v = Decide(Request{Key: testPin(2), Address: addr(2), Evidence: Evidence{back.ID}}, r, back, rules(), noon())
	r, err := r.Put(v.Node)
	if err != nil || r.removedKey(testPin(2)) || !r.removedName("dev-worker-0") {
		t.Errorf("let in again by a token of its own: %+v, %v, %v", r, v.Refusal, err)
	}
	if same := r.Remove("nobody", noon()); cmp.Diff(r, same, equal()) != "" {
		t.Error("removing nobody changes something")
	}
}
