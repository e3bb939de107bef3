// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	controlv1 "github.com/slipway-project/slipway/api/control/v1"
	"github.com/slipway-project/slipway/internal/control/members"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/kube"
)

func TestListNodes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change  func(*world)
		waiting map[string]string
	}{
		"all is healthy": {change: func(*world) {}, waiting: map[string]string{"c1": "", "c2": "", "c3": "", "w1": ""}},
		"etcd does not answer": {
			change:  func(w *world) { w.fail["etcd"] = errors.New("no leader") },
			waiting: map[string]string{"c1": "etcd does not answer: no leader", "c2": "etcd does not answer: no leader", "c3": "etcd does not answer: no leader", "w1": ""},
		},
		"Kubernetes does not answer": {
			change: func(w *world) {
				w.fail["kube"] = errors.New("refused")
				clear(w.nodes)
			},
			waiting: map[string]string{
				"c1": "Kubernetes does not answer: refused", "c2": "Kubernetes does not answer: refused", "c3": "Kubernetes does not answer: refused", "w1": "Kubernetes does not answer: refused",
			},
		},
		"the records cannot be read": {
			change: func(w *world) {
				w.fail["records"] = errors.New("damaged")
				clear(w.records)
			},
			waiting: map[string]string{
				"c1": "the records cannot be read: damaged", "c2": "the records cannot be read: damaged", "c3": "the records cannot be read: damaged", "w1": "the records cannot be read: damaged",
			},
		},
		"joining": {
			change: func(w *world) {
				w.records["c2"] = with(w.records["c2"], func(n *admission.Node) { n.Removing = true })
				w.etcd["c2"] = members.State{Member: "voter"}
				w.etcd["c3"] = members.State{Member: "learner"}
				w.records["w1"] = with(w.records["w1"], func(n *admission.Node) { n.PendingKey = "sha256:p" })
				w.records["c1"] = with(w.records["c1"], func(n *admission.Node) { n.Elsewhere, n.ElsewhereAt = netip.MustParseAddr("192.0.2.99"), time.Now() })
				w.nodes["w1"] = kube.NodeInfo{Name: "w1", Reason: "KubeletNotReady: no network"}
				w.records["w2"] = admission.Node{Name: "w2", Pool: "worker"}
				w.records["w3"] = admission.Node{Name: "w3", Pool: "worker", Key: "sha256:w3"}
				w.records["c4"] = admission.Node{Name: "c4", Pool: "main", Key: "sha256:c4"}
				w.records["c5"] = admission.Node{Name: "c5", Pool: "main", Key: "sha256:c5"}
				w.etcd["c5"] = members.State{Wait: &wait.For{What: "the membership lease", Who: "c3, which joins"}}
				w.nodes["stray"] = kube.NodeInfo{Name: "stray", Ready: true}
			},
			waiting: map[string]string{
				"c1": "its key is also used at 192.0.2.99, which is refused while the node is alive here: is that a copy of its disk? Turn one of the two off; to change the node's address to 192.0.2.99, run slipway node approve c1",
				"c2": "being removed: to continue, run slipway node remove c2; its etcd does not answer", "c3": "its etcd is a learner and has not caught up yet",
				"w1": "another machine, with key sha256:p, waits for the name: to admit it, run slipway node approve w1; KubeletNotReady: no network",
				"w2": "waiting for a machine to join with this name", "w3": "waiting for its kubelet to register", "c4": "waiting for its kubelet to register; not a member of etcd yet",
				"c5": "waiting for its kubelet to register; the membership lease (c3, which joins)", "stray": "no record: the node was removed, or never joined this cluster",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			tt.change(w)
			r, err := w.server().ListNodes(t.Context(), &controlv1.ListNodesRequest{})
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			for _, n := range r.GetNodes() {
				got[n.GetName()] = n.GetWaiting()
			}
			if diff := cmp.Diff(tt.waiting, got); diff != "" {
				t.Errorf("waiting (-want +got):\n%s", diff)
			}
		})
	}
}

func with(n admission.Node, change func(*admission.Node)) admission.Node {
	change(&n)
	return n
}

func TestListNodesWhole(t *testing.T) {
	t.Parallel()
	w := newWorld()
	r, err := w.server().ListNodes(t.Context(), &controlv1.ListNodesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := &controlv1.Node{
		Name: "c1", Roles: []string{"control-plane", "worker"}, Addresses: []string{"192.0.2.1"}, Ready: true, Version: "v1.36.4", PodCidr: "10.244.0.0/24",
		Member: "voter", Key: "sha256:c1", Facts: []byte("{}"),
	}
	if diff := cmp.Diff(want, r.GetNodes()[0], protocmp.Transform()); diff != "" {
		t.Errorf("c1 (-want +got):\n%s", diff)
	}
	w.fail["kube"], w.fail["records"] = errors.New("refused"), errors.New("refused")
	if _, err := w.server().ListNodes(t.Context(), nil); status.Code(err) != codes.Unavailable {
		t.Errorf("without any source: got %v", err)
	}
}
