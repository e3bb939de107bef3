// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestPodCIDR(t *testing.T) {
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
		got, ok := PodCIDR(netip.MustParsePrefix(tt.pods), tt.bits, tt.n)
		if ok != (tt.want != "") || ok && got.String() != tt.want {
			t.Errorf("%s: got %v, %v, want %q", name, got, ok, tt.want)
		}
	}
	if countPodCIDRs(netip.Prefix{}, 24) != 0 {
		t.Error("an invalid prefix has pod CIDRs")
	}
}

func TestPutRefusesConflicts(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		node Node
		want string
	}{
		"other index":    {Node{Name: "dev-worker-1", Pool: "worker", Index: 9, PodCIDR: podCIDR(2)}, "never change"},
		"other pod CIDR": {Node{Name: "dev-worker-1", Pool: "worker", Index: 2, PodCIDR: podCIDR(9)}, "never change"},
		"other pool":     {Node{Name: "dev-worker-1", Pool: "main", Index: 2, PodCIDR: podCIDR(2)}, "never change"},
		"same key":       {Node{Name: "x", Index: 9, PodCIDR: podCIDR(9), Key: testPin(1)}, "node dev-main-0 has the same key"},
		"same index":     {Node{Name: "x", Index: 1, PodCIDR: podCIDR(9)}, "the same index 1"},
		"same pod CIDR":  {Node{Name: "x", Index: 9, PodCIDR: netip.MustParsePrefix("10.244.0.0/20")}, "overlaps with"},
		"same address":   {Node{Name: "x", Index: 9, PodCIDR: podCIDR(9), Address: addr(2)}, "the same address"},
	}
	for name, tt := range tests {
		r, err := some().Put(tt.node)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got error %v, want %q", name, err, tt.want)
		}
		if diff := cmp.Diff(some(), r, equal()); diff != "" {
			t.Errorf("%s: the records have changed (-want +got):\n%s", name, diff)
		}
	}
}

func TestRegister(t *testing.T) {
	t.Parallel()
	worker := Node{Name: "dev-worker-1", Pool: "worker", Index: 2, PodCIDR: podCIDR(2)}
	tests := map[string]struct {
		document Node
		want     *Node // the record with that name; nil: unchanged
		err      string
	}{
		"new": {
			Node{Name: "dev-worker-9", Pool: "worker", Index: 9, PodCIDR: podCIDR(9), Key: testPin(7), Address: addr(7)},
			&Node{Name: "dev-worker-9", Pool: "worker", Index: 9, PodCIDR: podCIDR(9), Key: testPin(7), Address: addr(7)}, "",
		},
		"new, neither pending nor being removed": {
			Node{Name: "dev-worker-9", Pool: "worker", Index: 9, PodCIDR: podCIDR(9), PendingKey: testPin(1), Removing: true},
			&Node{Name: "dev-worker-9", Pool: "worker", Index: 9, PodCIDR: podCIDR(9)}, "",
		},
		"same":              {worker, nil, ""},
		"fills":             {Node{Name: "dev-worker-1", Key: testPin(7), Address: addr(7)}, &Node{Name: "dev-worker-1", Pool: "worker", Index: 2, PodCIDR: podCIDR(2), Key: testPin(7), Address: addr(7)}, ""},
		"other pod CIDR":    {Node{Name: "dev-worker-1", Pool: "main", Index: 99, PodCIDR: podCIDR(99)}, nil, ""},
		"other address":     {Node{Name: "dev-main-0", Address: addr(99)}, nil, ""},
		"key of a node":     {Node{Name: "dev-worker-1", Key: testPin(1)}, nil, "node dev-main-0 has the same key"},
		"address of a node": {Node{Name: "dev-worker-1", Address: addr(1)}, nil, "the same address"},
		"index of a node":   {Node{Name: "x", Index: 0, PodCIDR: podCIDR(77)}, nil, "the same index 0"},
		"bad name":          {Node{Name: "X\n"}, nil, "not a valid node name"},
		"bad key":           {Node{Name: "dev-worker-1", Key: "x"}, nil, "not the pin"},
		"removed, same key": {Node{Name: "dev-worker-3", Pool: "worker", Index: 9, PodCIDR: podCIDR(9), Key: testPin(9)}, nil, ""},
		"removed, no key":   {Node{Name: "dev-worker-3", Pool: "worker", Index: 9, PodCIDR: podCIDR(9)}, nil, ""},
		"removed, new key": {
			Node{Name: "dev-worker-3", Pool: "worker", Index: 9, PodCIDR: podCIDR(9), Key: testPin(7)},
			&Node{Name: "dev-worker-3", Pool: "worker", Index: 9, PodCIDR: podCIDR(9), Key: testPin(7)}, "",
		},
		"removed key for a record": {Node{Name: "dev-worker-1", Key: testPin(9)}, nil, ""},
		"another key waits": {
			Node{Name: "dev-main-0", Key: testPin(7)},
			&Node{Name: "dev-main-0", Pool: "main", PodCIDR: podCIDR(0), Address: addr(1), Key: testPin(1), JoinedAt: noon(), PendingKey: testPin(7), PendingAt: noon()}, "",
		},
		"a third key does not wait": {Node{Name: "dev-worker-0", Key: testPin(7)}, nil, ""},
		"being removed":             {Node{Name: "dev-worker-2", Key: testPin(7)}, nil, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := some().Register([]Node{tt.document, {Name: "last", Pool: "worker", Index: 100, PodCIDR: podCIDR(100)}}, noon())
			if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got error %v, want %q", err, tt.err)
			}
			want := some()
			if tt.want != nil {
				want = want.with(*tt.want)
			}
			want = want.with(Node{Name: "last", Pool: "worker", Index: 100, PodCIDR: podCIDR(100)})
			if diff := cmp.Diff(want, got, equal()); diff != "" {
				t.Error(diff)
			}
			if again, _ := got.Register([]Node{tt.document}, noon().Add(time.Hour)); cmp.Diff(got, again, equal()) != "" {
				t.Error("registering twice changes the records")
			}
		})
	}
}

func TestApprove(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"x": "no node x", "dev-main-0": "no machine waits", "dev-worker-2": "being removed"} {
		if _, _, err := some().Approve(name, noon()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want %q", name, err, want)
		}
	}
	r, n, err := some().Approve("dev-worker-0", noon())
	if err != nil || n.Key != testPin(5) || n.PendingKey != "" || n.Index != 1 || n.PodCIDR != podCIDR(1) {
		t.Fatalf("got %+v, %v", n, err)
	}
	in, old := Request{Key: testPin(5), Address: addr(2)}, Request{Key: testPin(2), Address: addr(2)}
	if v := Decide(in, r, nil, rules(), noon()); v.Node.Name != "dev-worker-0" || v.Wait != nil {
		t.Errorf("the approved machine: got %+v", v)
	}
	if v := Decide(old, r, nil, rules(), noon()); reasonOf(v) != KeyRemoved {
		t.Errorf("the previous machine: got %+v, want %s", v, KeyRemoved)
	}
}

// The name of a removed machine is not given to others, and the token that it has used before does not admit it again.
func TestRemove(t *testing.T) {
	t.Parallel()
	r := some().Remove("dev-worker-0", noon())
	if len(r.Nodes) != 3 || len(r.Removed) != 2 || len(some().Nodes) != 4 {
		t.Fatalf("got %+v", r)
	}
	if v := Decide(Request{Key: testPin(2), Address: addr(2)}, r, nil, rules(), noon()); reasonOf(v) != KeyRemoved {
		t.Errorf("got %+v, want %s", v, KeyRemoved)
	}
	token := with(nil)
	v := Decide(Request{Key: testPin(6), Address: addr(2), Evidence: Evidence{token.ID}}, r, token, rules(), noon())
	if v.Node.Name != "dev-worker-4" {
		t.Errorf("a new machine at the old address: got %+v, %v", v.Node, v.Refusal)
	}
	back := with(func(t *Token) { t.Key = testPin(2) })
	v = Decide(Request{Key: testPin(2), Address: addr(2), Evidence: Evidence{back.ID}}, r, back, rules(), noon())
	r, err := r.Put(v.Node)
	if err != nil || r.removedKey(testPin(2)) || !r.removedName("dev-worker-0") {
		t.Errorf("readmitted by a token for its key: got %+v, %v, %v", r, v.Refusal, err)
	}
	if same := r.Remove("missing", noon()); cmp.Diff(r, same, equal()) != "" {
		t.Error("removing an unknown node changes the records")
	}
}
