// SPDX-License-Identifier: Apache-2.0

package control

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/slipway-project/slipway/internal/kube"
	"github.com/slipway-project/slipway/internal/reconcile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRole(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, dns := newCluster(), &answerer{err: errors.New("10.96.0.10:53 does not answer")}
		c.refuse["shop"] = 2
		var mu sync.Mutex
		connected := errors.New("open /conf: no such file or directory")
		r := Role{Board: reconcile.NewBoard(), Log: slog.New(slog.DiscardHandler), Resolve: dns.resolve}
		r.Connect = func(string) (Cluster, error) {
			mu.Lock()
			defer mu.Unlock()
			return c, connected
		}
		run(t, r, document("slipway-base", "shop"))
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
		says(t, "the add-on was applied", r.Board, want)

		if dns.asked != 0 {
			t.Error("DNS was queried before it was available")
		}
		c.coredns("")
		want["control/dns"] = "starting 10.96.0.10:53 does not answer"
		says(t, "DNS does not answer", r.Board, want)
		dns.set(nil)
		time.Sleep(20 * time.Millisecond)
		want["control/dns"] = "ready"
		says(t, "DNS has answered", r.Board, want)

		if len(c.kept) != 1 || c.kept[0].PodCIDR.String() != "10.244.0.0/24" {
			t.Errorf("kept %+v", c.kept)
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

// An item that was ready fails when its state is bad, and becomes ready again.
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
		dns.set(errors.New("it does not answer"))
		c.coredns("")
		want["control/node/n1"], want["control/dns"] = "ready", "failing it does not answer"
		says(t, "the kubelet is back, CoreDNS is available but does not answer yet", r.Board, want)
		dns.set(nil)
		time.Sleep(time.Second)
		says(t, "CoreDNS answers", r.Board, ready("a"))

		dns.set(errors.New("it does not answer"))
		time.Sleep(queryInterval + maxUnanswered*queryPause)
		want["control/dns"] = "failing it does not answer"
		says(t, "it is available but no longer answers", r.Board, want)
		dns.set(nil)
		time.Sleep(time.Second)
		says(t, "it answers again", r.Board, ready("a"))
	})
}

func TestDecode(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ in, want string }{
		"not JSON":        {"x", "decode control document: invalid character 'x' looking for beginning of value"},
		"another version": {`{"version":2,"more":1}`, "decode control document: version 2, want 1 (use the same version of slipway on the operator's machine and on the nodes)"},
		"unknown field":   {`{"version":1,"more":1}`, `decode control document: json: unknown field "more"`},
	} {
		if _, err := Decode([]byte(tc.in)); err == nil || err.Error() != tc.want {
			t.Errorf("%s: got %v, want %s", name, err, tc.want)
		}
		r := Role{Board: reconcile.NewBoard(), Log: slog.New(slog.DiscardHandler)}
		if err := r.Run(t.Context(), []byte(tc.in)); err == nil {
			t.Errorf("%s: the role ran without an error", name)
		}
	}
	data, err := json.Marshal(document().Document)
	if err != nil {
		t.Fatal(err)
	}
	if d, err := Decode(data); err != nil || d.Self != "n1" || d.Records[0].Name != "n1" {
		t.Errorf("got %+v, %v", d, err)
	}
}

func TestSeedErrorsAreNotFatal(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, []byte("the CA"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		path, want string
		refuse     int
	}{
		"good":    {path: file, want: "the CA"},
		"refused": {path: file, want: "the CA", refuse: 1},
		"no CA":   {path: file + ".away"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster()
			c.refuse["seeds"] = tc.refuse
			if err := (Role{Log: slog.New(slog.DiscardHandler)}).seed(t.Context(), c, tc.path); err != nil {
				t.Errorf("got %v, want no error", err)
			}
			if c.seeded != tc.want {
				t.Errorf("seeded with %q, want %q", c.seeded, tc.want)
			}
		})
	}
}
