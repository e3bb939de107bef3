// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"log/slog"

	"github.com/slipway-project/slipway/internal/core/objects"
	"github.com/slipway-project/slipway/internal/kube"
)

// Kubernetes is the real Cluster.
type Kubernetes struct{ client *kube.Client }

// Connect reads the kubeconfig of a real cluster; it opens no connection yet.
func Connect(kubeconfig string, log *slog.Logger) (Cluster, error) {
	c, err := kube.Connect(kubeconfig, log)
	if err != nil {
		return nil, err
	}
	return Kubernetes{c}, nil
}

// Apply begins before the API server is ready: each object is in as soon as it is taken.
func (k Kubernetes) Apply(ctx context.Context, addOns []objects.AddOn, tell Teller) error {
	_, err := k.client.Apply(ctx, addOns, func(p kube.Progress) {
		if p.Changed || p.Removed {
			tell.Changed(p.Object)
		}
		switch {
		case p.Done && p.Object == "":
			tell.Done(p.AddOn)
		case p.Waiting != "" && p.Object == "":
			tell.Waiting(p.AddOn, p.Waiting) // an empty add-on: the inventory of all
		case p.Waiting != "":
			tell.Waiting(p.AddOn, p.Object+": "+p.Waiting)
		}
	})
	return err
}

// Drift watches the add-ons' objects.
func (k Kubernetes) Drift(ctx context.Context, addOns []objects.AddOn, changed func(object string)) error {
	return k.client.WatchDrift(ctx, addOns, changed)
}

// Seed makes what the first pods wait for.
func (k Kubernetes) Seed(ctx context.Context, rootCA string) error {
	return k.client.Seed(ctx, objects.Seeds(rootCA))
}

// ApproveServing approves the kubelets' serving certificates.
func (k Kubernetes) ApproveServing(ctx context.Context, known func() map[string]kube.Machine, changed <-chan struct{}) error {
	return k.client.ApproveServing(ctx, known, changed)
}

// Expel keeps removed nodes out.
func (k Kubernetes) Expel(ctx context.Context, standing func() kube.NodeStates, changed <-chan struct{}) error {
	return k.client.Expel(ctx, standing, changed)
}

// The lease of the leader. It is in a namespace that the API server makes by itself: the leader is there before the first apply.
const (
	leaseNamespace = "kube-system"
	leaseName      = "slipway-control"
)

// Lead takes part in the election.
func (k Kubernetes) Lead(ctx context.Context, self string, follow func(holder, why string), lead func(ctx context.Context, fence Fence) error) error {
	conf := kube.ElectConfig{Namespace: leaseNamespace, Name: leaseName, Identity: self, Follow: follow}
	return k.client.Elect(ctx, conf, func(ctx context.Context, fence kube.Fence) error {
		return lead(ctx, func(c Cluster) (Cluster, error) {
			guarded, err := c.(Kubernetes).client.Fenced(fence)
			return Kubernetes{guarded}, err
		})
	})
}

// KeepNode keeps what the machine's record says in the Node, and takes the taint of its birth away when it is Ready.
func (k Kubernetes) KeepNode(ctx context.Context, n Node, say, changed func(string)) error {
	r := kube.Record{Name: n.Name, PodCIDR: n.PodCIDR, Labels: n.Labels}
	for _, t := range n.Taints {
		r.Taints = append(r.Taints, kube.Taint(t))
	}
	return k.client.KeepNode(ctx, r, say, changed)
}

// WatchDeployment tells whether the Deployment is available.
func (k Kubernetes) WatchDeployment(ctx context.Context, namespace, name string, say func(reason string)) error {
	return k.client.WatchDeployment(ctx, namespace, name, say)
}
