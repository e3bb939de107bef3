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
		"all is well": {change: func(*world) {}, waiting: map[string]string{"c1": "", "c2": "", "c3": "", "w1": ""}},
		"etcd is away": {
			change:  func(w *world) { w.fail["etcd"] = errors.New("no leader") },
			waiting: map[string]string{"c1": "etcd does not answer: no leader", "c2": "etcd does not answer: no leader", "c3": "etcd does not answer: no leader", "w1": ""},
		},
		"Kubernetes is away": {
			change: func(w *world) {
				w.fail["kube"] = errors.New("refused")
				clear(w.nodes)
			},
			waiting: map[string]string{
				"c1": "Kubernetes does not answer: refused", "c2": "Kubernetes does not answer: refused", "c3": "Kubernetes does not answer: refused", "w1": "Kubernetes does not answer: refused",
			},
		},
		"the records are away": {
			change: func(w *world) {
				w.fail["records"] = errors.New("damaged")
				clear(w.records)
			},
			waiting: map[string]string{
				"c1": "the records cannot be read: damaged", "c2": "the records cannot be read: damaged", "c3": "the records cannot be read: damaged", "w1": "the records cannot be read: damaged",
			},
		},
		"on their way": {
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
				w.etcd["c5"] = members.State{Wait: &wait.For{What: "the etcd slot", Who: "c3, which joins"}}
				w.nodes["stray"] = kube.NodeInfo{Name: "stray", Ready: true}
			},
			waiting: map[string]string{
				"c1": "its key is shown at 192.0.2.99 too, which is refused while it is alive here: a copy of its disk? Switch one of the two off; slipway node approve c1 makes 192.0.2.99 its address",
				"c2": "it is being removed: slipway node remove c2 goes on with it; its etcd does not answer", "c3": "its etcd learns what the others know",
				"w1": "another machine asks for its name, sha256:p: slipway node approve w1 lets it in; KubeletNotReady: no network",
				"w2": "no machine has come for this name", "w3": "its kubelet has not registered", "c4": "its kubelet has not registered; it is no member of etcd yet",
				"c5": "its kubelet has not registered; the etcd slot (c3, which joins)", "stray": "it has no record: it was removed, or never let in by this cluster",
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
		t.Errorf("nothing is known, and it says %v", err)
	}
}
