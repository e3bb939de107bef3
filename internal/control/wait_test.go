// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/objects"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// The role does not connect to an API server that this run is about to replace.
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
		units := []string{"unit/kube-apiserver", "kubeconfig/" + config.ControlConf, "kubeconfig/" + config.SuperAdminConf, itemKubelet, "unit/kube-controller-manager", "unit/kube-scheduler", "unit/kube-proxy"}
		for _, u := range units {
			r.Board.Set(reconcile.Status{Ref: u, Phase: reconcile.Waiting})
		}
		set := func(ref string) { r.Board.Set(reconcile.Status{Ref: ref, Phase: reconcile.Ready}) }
		d := document("slipway-base")
		d.AddOns[0].Objects = []objects.Object{{"kind": "Deployment", "metadata": map[string]any{"namespace": "kube-system", "name": "coredns"}}}
		run(t, r, d)
		set("kubeconfig/" + config.ControlConf)
		set("kubeconfig/" + config.SuperAdminConf)
		synctest.Wait()
		if got := board(r.Board); len(connects) != 0 || got["control/role"] != "waiting unit/kube-apiserver" {
			t.Errorf("connected to %v before the API server was started; board %v", connects, got)
		}
		r.Board.Set(reconcile.Status{Ref: "unit/kube-apiserver", Phase: reconcile.Doing}) // the old one is being replaced
		synctest.Wait()
		if len(connects) != 0 {
			t.Errorf("connected to %v while the old API server runs", connects)
		}
		r.Board.Set(reconcile.Status{Ref: "unit/kube-apiserver", Phase: reconcile.Starting})
		synctest.Wait()
		if slices.Sort(connects); !slices.Equal(connects, []string{config.ControlConf, config.SuperAdminConf}) {
			t.Errorf("connected with %v", connects)
		}
		if got := board(r.Board); got["control/node/n1"] != "waiting unit/kubelet" || got["control/dns"] != "waiting unit/kube-controller-manager" || got["control/role"] != "ready" {
			t.Errorf("only the API server is running: got %v", got)
		}
		for _, u := range append(units[3:], "unit/kube-apiserver") {
			set(u)
		}
		synctest.Wait()
		if got := board(r.Board); got["control/node/n1"] != "ready" || got["control/dns"] != "ready" {
			t.Errorf("everything is running: got %v", got)
		}
	})
}

// All items are on the board before the role's own item.
func TestAnnounceOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := Role{
			Board: reconcile.NewBoard(), Log: slog.New(slog.DiscardHandler),
			Connect: func(string) (Cluster, error) { return nil, errors.New("no") },
		}
		changes := r.Board.Subscribe()
		defer changes.End()
		run(t, r, document("a", "b"))
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
