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
	"github.com/slipway-project/slipway/internal/kube"
	"github.com/slipway-project/slipway/internal/reconcile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cluster is a Kubernetes API in memory; the test says what it tells.
type cluster struct {
	mu       sync.Mutex // guards the fields below
	applied  []string
	refuse   map[string]int // how often Apply of an add-on is refused
	lacks    map[string]bool
	kept     []Node
	seeded   string
	approver func() map[string]kube.Machine
	again    <-chan struct{}
	standing func() kube.Standing
	ballot   *ballot // nil: this one leads

	drifted                 func(object string)
	node, coredns           func(reason string)
	nodes                   map[string]func(reason string)
	nodeChanged             func(what string)
	nodeState, corednsState string
}

func newCluster() *cluster {
	return &cluster{
		refuse: map[string]int{}, lacks: map[string]bool{}, nodes: map[string]func(string){},
		nodeState: "the network is not ready", corednsState: "0 of 1 replicas are available",
	}
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

func (c *cluster) Apply(_ context.Context, addOns []objects.AddOn, tell Teller) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, a := range addOns {
		if c.refuse[a.Name]--; c.refuse[a.Name] >= 0 {
			tell.Waiting(a.Name, "ConfigMap x: it is being applied")
			errs = append(errs, errors.New(a.Name+": namespaces \"shop\" not found"))
			continue
		}
		c.applied = append(c.applied, a.Name)
		if c.lacks[a.Name] {
			delete(c.lacks, a.Name)
			tell.Changed("Deployment " + a.Name)
		}
		tell.Done(a.Name)
	}
	tell.Waiting("", "the inventory is being written")
	return errors.Join(errs...)
}

func (c *cluster) Drift(ctx context.Context, _ []objects.AddOn, changed func(string)) error {
	c.mu.Lock()
	c.drifted = changed
	c.mu.Unlock()
	<-ctx.Done()
	return ctx.Err()
}

func (c *cluster) ApproveServing(ctx context.Context, known func() map[string]kube.Machine, changed <-chan struct{}) error {
	c.mu.Lock()
	c.approver, c.again = known, changed
	c.mu.Unlock()
	<-ctx.Done()
	return ctx.Err()
}

func (c *cluster) Expel(ctx context.Context, standing func() kube.Standing, _ <-chan struct{}) error {
	c.mu.Lock()
	c.standing = standing
	c.mu.Unlock()
	<-ctx.Done()
	return ctx.Err()
}

func (c *cluster) KeepNode(ctx context.Context, n Node, say, changed func(string)) error {
	c.mu.Lock()
	c.kept, c.node, c.nodeChanged = append(c.kept, n), say, changed
	c.nodes[n.Name] = say
	say(c.nodeState)
	c.mu.Unlock()
	<-ctx.Done()
	return ctx.Err()
}

func (c *cluster) WatchDeployment(ctx context.Context, _ Workload, say func(string)) error {
	c.mu.Lock()
	c.coredns = say
	say(c.corednsState)
	c.mu.Unlock()
	<-ctx.Done()
	return ctx.Err()
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

// answerer is a DNS server whose answer the test sets.
type answerer struct {
	mu    sync.Mutex // guards the fields below
	err   error
	asked int
}

func (a *answerer) set(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
}

func (a *answerer) resolve(_ context.Context, server netip.AddrPort, name string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked++
	if server.String() != "10.96.0.10:53" || name != apiName {
		return errors.New("asks " + server.String() + " for " + name)
	}
	return a.err
}

// up is a role whose cluster is ready.
func up(t *testing.T, addOns ...string) (*cluster, *answerer, Role) {
	t.Helper()
	c, a := newCluster(), &answerer{}
	c.nodeState, c.corednsState = "", ""
	r := Role{Board: reconcile.NewBoard(), Log: slog.New(slog.DiscardHandler), Resolve: a.resolve}
	r.Connect = func(string) (Cluster, error) { return c, nil }
	run(t, r, document(t, addOns...))
	return c, a, r
}

func ready(addOns ...string) map[string]string {
	out := map[string]string{"control/role": "ready", "control/node/n1": "ready", "control/dns": "ready"}
	for _, a := range addOns {
		out["control/addon/"+a] = "ready"
	}
	return out
}

func TestRole(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, dns := newCluster(), &answerer{err: errors.New("10.96.0.10:53 is silent")}
		c.refuse["shop"] = 2
		var mu sync.Mutex
		connected := errors.New("open /conf: no such file or directory")
		r := Role{Board: reconcile.NewBoard(), Log: slog.New(slog.DiscardHandler), Resolve: dns.resolve}
		r.Connect = func(string) (Cluster, error) {
			mu.Lock()
			defer mu.Unlock()
			return c, connected
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
			"control/node/n1": "starting the network is not ready", "control/dns": "starting 0 of 1 replicas are available",
		}
		says(t, "refused", r.Board, want)

		c.node("")
		time.Sleep(time.Second + time.Millisecond)
		want["control/node/n1"] = "ready"
		says(t, "the node is ready, the add-on is refused again", r.Board, want)
		time.Sleep(2 * time.Second)
		want["control/role"], want["control/addon/shop"] = "ready", "ready"
		says(t, "the add-on was taken", r.Board, want)

		if dns.asked != 0 {
			t.Error("DNS was asked before it was there")
		}
		c.coredns("")
		want["control/dns"] = "starting 10.96.0.10:53 is silent"
		says(t, "DNS is silent", r.Board, want)
		dns.set(nil)
		time.Sleep(20 * time.Millisecond)
		want["control/dns"] = "ready"
		says(t, "DNS has answered", r.Board, want)

		if len(c.kept) != 1 || c.kept[0].PodCIDR.String() != "10.244.0.0/24" {
			t.Errorf("records: %+v", c.kept)
		}
		if !slices.Equal(c.applied, []string{"slipway-base", "slipway-base", "slipway-base", "shop"}) {
			t.Errorf("applied %v", c.applied)
		}
		want1 := map[string]kube.Machine{"n1": {Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}}
		if diff := cmp.Diff(want1, c.approver(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("known machines (-want +got):\n%s", diff)
		}
	})
}

// What was ready falls when it is so no longer, and rises again.
func TestFallAndRise(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, dns, r := up(t, "a")
		want := ready("a")
		says(t, "up", r.Board, want)

		c.node("NodeStatusUnknown: Kubelet stopped posting node status.")
		c.coredns("deployment kube-system/coredns does not exist")
		want["control/node/n1"] = "failing NodeStatusUnknown: Kubelet stopped posting node status."
		want["control/dns"] = "failing deployment kube-system/coredns does not exist"
		says(t, "the kubelet hangs and CoreDNS is deleted", r.Board, want)
		c.node("")
		dns.set(errors.New("it is silent"))
		c.coredns("")
		want["control/node/n1"], want["control/dns"] = "ready", "failing it is silent"
		says(t, "the kubelet is back, CoreDNS is there and does not answer yet", r.Board, want)
		dns.set(nil)
		time.Sleep(time.Second)
		says(t, "CoreDNS answers", r.Board, ready("a"))

		dns.set(errors.New("it is silent"))
		time.Sleep(askAgain + silences*askSoon)
		want["control/dns"] = "failing it is silent"
		says(t, "it is available and answers no longer", r.Board, want)
		dns.set(nil)
		time.Sleep(time.Second)
		says(t, "it answers again", r.Board, ready("a"))
	})
}

// What somebody deletes is put back, and the board counts it.
func TestPutBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, _, r := up(t, "a")
		says(t, "up", r.Board, ready("a"))
		if _, steps := r.Board.All(); steps != 0 {
			t.Errorf("%d steps, and nothing has changed", steps)
		}
		c.lacks["a"] = true
		c.drifted("Deployment kube-system/coredns")
		time.Sleep(2 * firstRest)
		synctest.Wait()
		if _, steps := r.Board.All(); steps != 1 || len(c.applied) != 2 {
			t.Errorf("%d steps after %v", steps, c.applied)
		}
		c.nodeChanged("record of node n1")
		if _, steps := r.Board.All(); steps != 2 {
			t.Errorf("a node's record was written: %d steps", steps)
		}
		time.Sleep(lookAgain)
		synctest.Wait()
		if len(c.applied) != 3 {
			t.Errorf("without any drift it is applied now and then: %v", c.applied)
		}
	})
}

// Somebody who changes at once what we put back is not fought at full speed.
func TestQuarrel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, _, _ := up(t, "a")
		for range 1000 {
			c.mu.Lock()
			c.lacks["a"] = true
			c.mu.Unlock()
			c.drifted("ConfigMap x")
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if n := len(c.applied); n < 10 || n > 30 {
			t.Errorf("applied %d times in 1000 s", n)
		}
	})
}

// What an API server says that this run is about to replace is no evidence.
func TestWaitsForThisRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, dns := newCluster(), &answerer{}
		c.nodeState, c.corednsState = "", ""
		r := Role{Board: reconcile.NewBoard(), Log: slog.New(slog.DiscardHandler), Resolve: dns.resolve}
		var mu sync.Mutex
		connects := []string{}
		r.Connect = func(path string) (Cluster, error) {
			mu.Lock()
			defer mu.Unlock()
			connects = append(connects, path)
			return c, nil
		}
		units := []string{"unit/kube-apiserver", "kubeconfig//conf", "kubeconfig//apply", itemKubelet, "unit/kube-controller-manager", "unit/kube-scheduler", "unit/kube-proxy"}
		for _, u := range units {
			r.Board.Set(reconcile.Status{Ref: u, Phase: reconcile.Waiting})
		}
		set := func(ref string) { r.Board.Set(reconcile.Status{Ref: ref, Phase: reconcile.Ready}) }
		var doc Document
		if err := json.Unmarshal(document(t, "slipway-base"), &doc); err != nil {
			t.Fatal(err)
		}
		doc.ApplyKubeconfig = "/apply"
		doc.AddOns[0].Objects = []objects.Object{{"kind": "Deployment", "metadata": map[string]any{"namespace": "kube-system", "name": "coredns"}}}
		data, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		run(t, r, data)
		set("kubeconfig//conf")
		set("kubeconfig//apply")
		synctest.Wait()
		if got := board(r.Board); len(connects) != 0 || got["control/role"] != "waiting unit/kube-apiserver" {
			t.Errorf("connects to %v before the API server is up; %v", connects, got)
		}
		r.Board.Set(reconcile.Status{Ref: "unit/kube-apiserver", Phase: reconcile.Doing}) // the old one is being replaced
		synctest.Wait()
		if len(connects) != 0 {
			t.Errorf("connects to %v while the old API server runs", connects)
		}
		r.Board.Set(reconcile.Status{Ref: "unit/kube-apiserver", Phase: reconcile.Starting})
		synctest.Wait()
		if slices.Sort(connects); !slices.Equal(connects, []string{"/apply", "/conf"}) {
			t.Errorf("connects with %v", connects)
		}
		if got := board(r.Board); got["control/node/n1"] != "waiting unit/kubelet" || got["control/dns"] != "waiting unit/kube-controller-manager" || got["control/role"] != "ready" {
			t.Errorf("with an API server and nothing else: %v", got)
		}
		for _, u := range append(units[3:], "unit/kube-apiserver") {
			set(u)
		}
		synctest.Wait()
		if got := board(r.Board); got["control/node/n1"] != "ready" || got["control/dns"] != "ready" {
			t.Errorf("all is up: %v", got)
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
