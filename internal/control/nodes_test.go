// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/spec"
	"github.com/slipway-project/slipway/internal/kube"
	"github.com/slipway-project/slipway/internal/reconcile"
)

func names(r *nodeSet) []string { return slices.Sorted(maps.Keys(r.nodes())) }

// A node is dropped only when its record existed and is gone.
func TestNodeSet(t *testing.T) {
	t.Parallel()
	n1, n2, token := admission.Node{Name: "n1"}, admission.Node{Name: "n2"}, admission.Node{Name: "t"}
	r := newNodeSet(Desired{Document: Document{Records: []admission.Node{n1, n2}}})
	for _, step := range []struct {
		what       string
		registered bool
		learn      []admission.Node
		want       []string
	}{
		{"the records were not read", false, nil, []string{"n1", "n2"}},
		{"the second node of the document has no record yet", false, []admission.Node{n1, token}, []string{"n1", "n2", "t"}},
		{"both have records", true, []admission.Node{n1, n2, token}, []string{"n1", "n2", "t"}},
		{"a token's node is removed", true, []admission.Node{n1, n2}, []string{"n1", "n2"}},
		{"the document's nodes are removed", true, []admission.Node{}, nil},
		{"one is admitted again", true, []admission.Node{n1}, []string{"n1"}},
	} {
		if step.registered {
			r.setRegistered()
		}
		if step.learn != nil {
			r.load(step.learn, nil)
		}
		if diff := cmp.Diff(step.want, names(r)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.what, diff)
		}
	}
}

// A Node is made from the record and from its pool in the spec.
func TestNodeOfRecord(t *testing.T) {
	t.Parallel()
	address, podCIDR := netip.MustParseAddr("192.0.2.2"), netip.MustParsePrefix("10.244.9.0/24")
	pool := spec.Pool{Name: "main", Roles: []string{"worker"}, Labels: map[string]string{"new": ""}, Taints: []machine.Taint{{Key: "k"}}}
	d := Desired{Config: config.Cluster{Pools: []config.Pool{{Pool: pool, Nodes: []config.NodeName{{Name: "own", Labels: map[string]string{"disk": "fast"}}}}}}}
	for name, tt := range map[string]struct {
		record admission.Node
		want   Node
	}{
		"an empty record": {admission.Node{Name: "n"}, Node{Name: "n"}},
		"a complete record": {
			admission.Node{Name: "n", Pool: "main", Address: address, PodCIDR: podCIDR},
			Node{
				Name: "n", Addresses: []netip.Addr{address}, PodCIDR: podCIDR,
				Labels: map[string]string{"new": "", "node-role.kubernetes.io/worker": ""}, Taints: []machine.Taint{{Key: "k"}},
			},
		},
		"a machine with labels": {
			admission.Node{Name: "own", Pool: "main"},
			Node{Name: "own", Labels: map[string]string{"disk": "fast", "new": "", "node-role.kubernetes.io/worker": ""}, Taints: []machine.Taint{{Key: "k"}}},
		},
		"a pool that is not in the spec": {admission.Node{Name: "n", Pool: "gone"}, Node{Name: "n"}},
	} {
		same := []cmp.Option{cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })}
		if diff := cmp.Diff(tt.want, d.node(tt.record), same...); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// recorded runs a leader with records.
func recorded(t *testing.T, b *book, change func(*Desired)) (*cluster, Role) {
	t.Helper()
	c, a := newCluster(), &answerer{}
	c.nodeState, c.corednsState, c.ballot = "", "", newBallot("n1")
	r := Role{Board: reconcile.NewBoard(), Log: slog.New(slog.DiscardHandler), Resolve: a.resolve}
	r.Connect = func(string) (Cluster, error) { return c, nil }
	r.Records = func(string) (Records, error) { return b, nil }
	run(t, r, several(change))
	return c, r
}

// Until its machine has joined, a node's item says so. It does not wait for the units of another machine.
func TestNodeThatHasNotJoined(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n1, n2 := admission.Node{Name: "n1", Pool: "main"}, admission.Node{Name: "n2", Pool: "main"}
		b := &book{nodes: []admission.Node{n1, n2}}
		c, r := recorded(t, b, func(d *Desired) { d.Records = []admission.Node{n1, n2} })
		synctest.Wait()
		for _, n := range []string{"n1", "n2"} {
			c.nodes[n](kube.Absent(n))
		}
		want := ready("a")
		want["control/node/n1"], want["control/node/n2"] = "failing "+kube.Absent("n1"), "failing the machine has not joined"
		want["control/records"] = "ready"
		says(t, "no Node exists", r.Board, want)
		n2.JoinedAt = time.Now()
		b.set(nil, n1, n2)
		c.nodes["n2"](kube.Absent("n2"))
		want["control/node/n2"] = "failing " + kube.Absent("n2")
		says(t, "it has joined and has no Node", r.Board, want)
	})
}

// Only this machine's kubelet is on this board.
func TestUnitsOfThisMachine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n1, n2 := admission.Node{Name: "n1", Pool: "main"}, admission.Node{Name: "n2", Pool: "main"}
		c, a := newCluster(), &answerer{}
		c.nodeState, c.corednsState, c.ballot = "", "", newBallot("n1")
		r := Role{Board: reconcile.NewBoard(), Log: slog.New(slog.DiscardHandler), Resolve: a.resolve}
		r.Connect = func(string) (Cluster, error) { return c, nil }
		r.Board.Set(reconcile.Status{Ref: itemKubelet, Phase: reconcile.Waiting})
		run(t, r, several(func(d *Desired) { d.Records = []admission.Node{n1, n2} }))
		want := ready("a")
		want["control/node/n1"], want["control/node/n2"], want[itemKubelet] = "waiting "+itemKubelet, "ready", "waiting"
		says(t, "its kubelet is not running", r.Board, want)
	})
}

// A changed pod CIDR in a record restarts the work for the node.
func TestRecordThatChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n1 := admission.Node{Name: "n1", Pool: "main", PodCIDR: netip.MustParsePrefix("10.244.0.0/24")}
		b := &book{nodes: []admission.Node{n1}}
		c, _ := recorded(t, b, func(d *Desired) { d.Records = []admission.Node{n1} })
		synctest.Wait()
		before := len(c.kept)
		n1.PodCIDR = netip.MustParsePrefix("10.244.7.0/24")
		b.set(nil, n1)
		synctest.Wait()
		if len(c.kept) != before+1 || c.kept[before].PodCIDR != n1.PodCIDR {
			t.Errorf("kept %+v, want one more with the new pod CIDR", c.kept[before:])
		}
	})
}

// A record that is refused does not keep other nodes out. The error is shown until it is fixed.
func TestRecordThatIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n1 := admission.Node{Name: "n1", Pool: "main"}
		b := &book{nodes: []admission.Node{n1, {Name: "t", Pool: "main"}}, refused: errors.New("node n1: its key is that of node t")}
		_, r := recorded(t, b, func(d *Desired) { d.Records = []admission.Node{n1} })
		want := ready("a")
		want["control/node/t"], want["control/records"] = "ready", "failing node n1: its key is that of node t"
		says(t, "refused", r.Board, want)
		b.mu.Lock()
		b.refused = nil
		b.mu.Unlock()
		time.Sleep(time.Second)
		want["control/records"] = "ready"
		says(t, "fixed", r.Board, want)
	})
}

// A leader with an old document does not restore removed nodes: it trusts only the records, and nothing before it has read them.
func TestDocumentRestoresNoNode(t *testing.T) {
	t.Parallel()
	address := netip.MustParseAddr("192.0.2.2")
	in, gone, leaving := admission.Node{Name: "in", Address: address}, admission.Node{Name: "gone", Address: address}, admission.Node{Name: "leaving", Removing: true}
	r := newNodeSet(Desired{Document: Document{Records: []admission.Node{in, gone}}})
	r.needsRecords = true
	if m := r.machines(); len(m["in"].Addresses)+len(m["gone"].Addresses) > 0 {
		t.Errorf("before the records were read: got machines with addresses: %v", m)
	}
	if s := r.states(); len(s.In)+len(s.Leaving)+len(s.Removed) > 0 {
		t.Errorf("before the records were read: got states %+v", s)
	}
	r.load([]admission.Node{in, leaving}, []admission.Removed{{Name: "gone"}, {Name: "in"}}) // another machine has the name "in" now
	want := kube.NodeStates{In: map[string]bool{"in": true}, Leaving: map[string]bool{"leaving": true}, Removed: map[string]bool{"gone": true}}
	if diff := cmp.Diff(want, r.states()); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
	m := r.machines()
	if _, back := m["gone"]; back || len(m["in"].Addresses) != 1 || len(m["leaving"].Addresses) != 0 {
		t.Errorf("got machines %v", m)
	}
}
