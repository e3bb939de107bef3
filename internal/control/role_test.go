// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/slipway-project/slipway/internal/core/objects"
	"github.com/slipway-project/slipway/internal/reconcile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cluster is a Kubernetes API in memory: each of its promises is kept by a channel that the test closes, or an error.
type cluster struct {
	nodeReady, available chan struct{}

	mu       sync.Mutex // guards the fields below
	applied  []string
	refuse   map[string]int // how often Apply of an add-on, or SetNode of a node, is refused
	set      []Node
	seeded   string
	approver func(string) ([]netip.Addr, bool)
}

func newCluster() *cluster {
	return &cluster{nodeReady: make(chan struct{}), available: make(chan struct{}), refuse: map[string]int{}}
}

func (c *cluster) refused(what string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuse[what]--
	return c.refuse[what] >= 0
}

func (c *cluster) Seed(_ context.Context, rootCA string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seeded = rootCA
	if c.refuse["seeds"] > 0 {
		return errors.New("seeds are refused")
	}
	return nil
}

func (c *cluster) Apply(_ context.Context, addOns []objects.AddOn, waiting func(addOn, reason string), done func(addOn string)) (bool, error) {
	var errs []error
	for _, a := range addOns {
		waiting(a.Name, "ConfigMap x: it is being applied")
		if c.refused(a.Name) {
			errs = append(errs, errors.New(a.Name+": namespaces \"shop\" not found"))
			continue
		}
		c.mu.Lock()
		c.applied = append(c.applied, a.Name)
		c.mu.Unlock()
		done(a.Name)
	}
	waiting("", "the inventory is being written")
	return true, errors.Join(errs...)
}

func (c *cluster) ApproveServing(ctx context.Context, addresses func(node string) ([]netip.Addr, bool)) error {
	c.mu.Lock()
	c.approver = addresses
	c.mu.Unlock()
	<-ctx.Done()
	return ctx.Err()
}

func (c *cluster) SetNode(_ context.Context, n Node) error {
	if c.refused(n.Name) {
		return errors.New("it has another pod range")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set = append(c.set, n)
	return nil
}

func (c *cluster) AwaitNode(ctx context.Context, _ string, waiting func(string)) error {
	return await(ctx, c.nodeReady, waiting, "the network is not ready")
}

func (c *cluster) AwaitDeployment(ctx context.Context, w Workload, waiting func(string)) error {
	return await(ctx, c.available, waiting, "0 of 1 replicas of "+w.Name+" are available")
}

func await(ctx context.Context, door chan struct{}, waiting func(string), why string) error {
	waiting(why)
	select {
	case <-door:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func document(t *testing.T, addOns ...string) []byte {
	t.Helper()
	d := Document{
		Version: Version, Cluster: "dev", Kubeconfig: "/conf", DNS: DNS{Address: netip.MustParseAddr("10.96.0.10"), Domain: "cluster.local"},
		Nodes:       []Node{{Name: "n1", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, PodCIDR: netip.MustParsePrefix("10.244.0.0/24")}},
		Deployments: []Workload{{Namespace: "kube-system", Name: "coredns"}},
	}
	for _, name := range addOns {
		d.AddOns = append(d.AddOns, objects.AddOn{Name: name})
	}
	data, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// run starts a role in a bubble of fake time; the role ends with the test.
func run(t *testing.T, r Role, doc []byte) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx, doc) }()
	t.Cleanup(func() {
		cancel()
		begun := time.Now()
		if err := <-ended; !errors.Is(err, context.Canceled) || time.Since(begun) > time.Second {
			t.Errorf("the role ended after %s: %v", time.Since(begun), err)
		}
	})
	synctest.Wait()
}

// board is what the role says, in words.
func board(b *reconcile.Board) map[string]string {
	out := map[string]string{}
	all, _ := b.All()
	for _, s := range all {
		out[s.Ref] = strings.TrimSpace(string(s.Phase) + " " + s.For + s.Error)
	}
	return out
}

func says(t *testing.T, when string, b *reconcile.Board, want map[string]string) {
	t.Helper()
	synctest.Wait()
	if diff := cmp.Diff(want, board(b)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", when, diff)
	}
}

func TestRole(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		c.refuse["shop"], c.refuse["n1"] = 2, 1
		var mu sync.Mutex
		answer, asked := errors.New("10.96.0.10:53 is silent"), 0
		connected := errors.New("open /conf: no such file or directory")
		r := Role{Board: reconcile.NewBoard(), Log: slog.New(slog.DiscardHandler)}
		r.Connect = func(path string) (Cluster, error) {
			mu.Lock()
			defer mu.Unlock()
			if path != "/conf" {
				t.Errorf("connects with %s", path)
			}
			return c, connected
		}
		r.Resolve = func(_ context.Context, server netip.AddrPort, name string) error {
			mu.Lock()
			defer mu.Unlock()
			asked++
			if server.String() != "10.96.0.10:53" || name != apiName {
				t.Errorf("asks %s for %s", server, name)
			}
			return answer
		}
		run(t, r, document(t, "slipway-base", "shop"))
		says(t, "before there is a kubeconfig", r.Board, map[string]string{
			"control/role":       "starting open /conf: no such file or directory",
			"control/addon/shop": "waiting unit/kube-apiserver", "control/addon/slipway-base": "waiting unit/kube-apiserver",
			"control/node/n1": "waiting unit/kubelet", "control/dns": "waiting the DNS deployment",
		})

		mu.Lock()
		connected = nil
		mu.Unlock()
		time.Sleep(10 * time.Millisecond)
		want := map[string]string{
			"control/role":       `failing shop: namespaces "shop" not found`,
			"control/addon/shop": "starting ConfigMap x: it is being applied", "control/addon/slipway-base": "ready",
			"control/node/n1": "starting the network is not ready", "control/dns": "starting 0 of 1 replicas of coredns are available",
		}
		// The record's refusal and the wait for the kubelet share an item; either may be told last.
		synctest.Wait()
		if got := board(r.Board)["control/node/n1"]; got == "failing it has another pod range" {
			want["control/node/n1"] = got
		}
		says(t, "refused", r.Board, want)

		close(c.nodeReady)
		time.Sleep(time.Second + time.Millisecond)
		want["control/node/n1"] = "ready"
		says(t, "the node is ready, the add-on is refused again", r.Board, want)
		time.Sleep(2 * time.Second)
		want["control/role"], want["control/addon/shop"] = "ready", "ready"
		says(t, "the add-on was taken", r.Board, want)

		if asked != 0 {
			t.Error("DNS was asked before it was there")
		}
		close(c.available)
		want["control/dns"] = "starting 10.96.0.10:53 is silent"
		says(t, "DNS is silent", r.Board, want)
		mu.Lock()
		answer = nil
		mu.Unlock()
		time.Sleep(20 * time.Millisecond)
		want["control/dns"] = "ready"
		says(t, "DNS has answered", r.Board, want)

		if len(c.set) != 1 || c.set[0].PodCIDR.String() != "10.244.0.0/24" {
			t.Errorf("records: %+v", c.set)
		}
		if !slices.Equal(c.applied, []string{"slipway-base", "slipway-base", "slipway-base", "shop"}) {
			t.Errorf("applied %v", c.applied)
		}
		if a, ok := c.approver("n1"); !ok || len(a) != 1 || a[0].String() != "192.0.2.1" {
			t.Errorf("addresses of n1: %v %t", a, ok)
		}
		if _, ok := c.approver("stranger"); ok {
			t.Error("a stranger has addresses")
		}
	})
}

// Whoever watches the board sees every item before the role calls itself ready.
func TestAnnounceOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := Role{
			Board: reconcile.NewBoard(), Log: slog.New(slog.DiscardHandler),
			Connect: func(string) (Cluster, error) { return nil, errors.New("no") },
		}
		changes := r.Board.Subscribe()
		defer changes.End()
		run(t, r, document(t, "a", "b"))
		var order []string
		for _, s := range changes.Take() {
			order = append(order, s.Ref)
		}
		if diff := cmp.Diff([]string{"control/addon/a", "control/addon/b", "control/node/n1", "control/dns", "control/role"}, order); diff != "" {
			t.Errorf("announced (-want +got):\n%s", diff)
		}
		spans := map[string][]string{}
		for _, s := range r.Board.Spans() {
			spans[s.Ref] = s.Needs
		}
		if diff := cmp.Diff([]string{
			"unit/kube-controller-manager", "unit/kube-scheduler", "unit/kube-proxy", "control/addon/a", "control/addon/b", "control/node/n1",
		}, spans["control/dns"]); diff != "" {
			t.Errorf("needs of DNS (-want +got):\n%s", diff)
		}
	})
}

func TestDecode(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ in, want string }{
		"not JSON":        {"x", "decode control document: invalid character 'x' looking for beginning of value"},
		"another version": {`{"version":2,"more":1}`, "decode control document: version 2, want 1: use the same slipway on operator and node"},
		"unknown field":   {`{"version":1,"more":1}`, `decode control document: json: unknown field "more"`},
	} {
		if _, err := Decode([]byte(tc.in)); err == nil || err.Error() != tc.want {
			t.Errorf("%s: %v, want %s", name, err, tc.want)
		}
		r := Role{Board: reconcile.NewBoard(), Log: slog.New(slog.DiscardHandler)}
		if err := r.Run(t.Context(), []byte(tc.in)); err == nil {
			t.Errorf("%s: the role runs", name)
		}
	}
	d, err := Decode(document(t, "a"))
	if err != nil || d.Nodes[0].Name != "n1" || d.AddOns[0].Name != "a" {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestSeedsAreAHeadStartOnly(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, []byte("the CA"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		path, want string
		refuse     int
	}{
		"as it should be": {path: file, want: "the CA"},
		"refused":         {path: file, want: "the CA", refuse: 1},
		"no CA":           {path: file + ".away"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster()
			c.refuse["seeds"] = tc.refuse
			if err := (Role{Log: slog.New(slog.DiscardHandler)}).seed(t.Context(), c, tc.path); err != nil {
				t.Errorf("seeding ends the role: %v", err)
			}
			if c.seeded != tc.want {
				t.Errorf("seeded with %q, want %q", c.seeded, tc.want)
			}
		})
	}
}
