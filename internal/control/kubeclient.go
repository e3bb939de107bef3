// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"log/slog"
	"net/netip"

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
func (k Kubernetes) Apply(ctx context.Context, addOns []objects.AddOn, waiting func(addOn, reason string), done func(addOn string)) (bool, error) {
	return k.client.Apply(ctx, addOns, func(p kube.Progress) {
		switch {
		case p.Done && p.Object == "":
			done(p.AddOn)
		case p.Waiting != "" && p.Object == "":
			waiting(p.AddOn, p.Waiting) // an empty add-on: the inventory of all
		case p.Waiting != "":
			waiting(p.AddOn, p.Object+": "+p.Waiting)
		}
	})
}

// ApproveServing approves the kubelets' serving certificates.
func (k Kubernetes) ApproveServing(ctx context.Context, addresses func(node string) ([]netip.Addr, bool)) error {
	return k.client.ApproveServing(ctx, addresses, nil)
}

// Seed makes what the first pods wait for.
func (k Kubernetes) Seed(ctx context.Context, rootCA string) error {
	return k.client.Seed(ctx, objects.Seeds(rootCA))
}

// SetNode writes what the machine's record says into the Node, and takes the taint of its birth away when it is Ready.
func (k Kubernetes) SetNode(ctx context.Context, n Node) error {
	taints := make([]kube.Taint, 0, len(n.Taints))
	for _, t := range n.Taints {
		taints = append(taints, kube.Taint(t))
	}
	if err := k.client.EnsureNodeFields(ctx, n.Name, n.PodCIDR, n.Labels, taints); err != nil {
		return err
	}
	return k.client.ClearNotReady(ctx, n.Name)
}

// AwaitNode waits for the Node to be Ready.
func (k Kubernetes) AwaitNode(ctx context.Context, name string, waiting func(reason string)) error {
	return k.client.WaitNodeReady(ctx, name, waiting)
}

// AwaitDeployment waits for the Deployment to be available.
func (k Kubernetes) AwaitDeployment(ctx context.Context, w Workload, waiting func(reason string)) error {
	return k.client.WaitDeploymentAvailable(ctx, w.Namespace, w.Name, waiting)
}
