// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"log/slog"

	"github.com/slipway-project/slipway/internal/core/objects"
	"github.com/slipway-project/slipway/internal/kube"
)

// Cluster is the Kubernetes API as the role uses it. While the API does not answer, its methods wait and report the reason.
type Cluster interface {
	Applier
	Controller
	Elector
}

// Elector elects one of several control planes.
type Elector interface {
	// Lead calls lead whenever self is elected, with a context that ends before another control plane leads. It runs until ctx ends or
	// lead returns by itself. It calls follow with the leader's name, or with the reason why the leader is unknown.
	Lead(ctx context.Context, self string, follow func(holder, why string), lead func(ctx context.Context, fence Fence) error) error
}

// Fence returns a connection that writes only while this machine is certainly the leader.
type Fence func(Cluster) (Cluster, error)

// unfenced is the Fence of a single control plane.
func unfenced(c Cluster) (Cluster, error) { return c, nil }

// Applier creates the cluster's objects. It needs all rights.
type Applier interface {
	// Apply makes the cluster have exactly these add-ons. It returns when it has succeeded or an object is refused.
	Apply(ctx context.Context, addOns []objects.AddOn, progress Progress) error
	// Drift calls changed for each object of the add-ons that someone has changed or deleted, until ctx ends.
	Drift(ctx context.Context, addOns []objects.AddOn, changed func(object string)) error
	// Seed creates what the first pods need in the namespaces that every cluster has.
	Seed(ctx context.Context, rootCA string) error
}

// Controller is the role's continuous work. Its methods run until ctx ends, with the role's own rights. They call say when a state
// changes: with the reason why it is not as desired, or with "" when it is.
type Controller interface {
	// ApproveServing approves the serving certificates of known machines. It reviews pending requests again when changed fires.
	ApproveServing(ctx context.Context, known func() map[string]kube.Machine, changed <-chan struct{}) error
	// Expel keeps removed nodes out of the cluster. It reads states again when changed fires.
	Expel(ctx context.Context, states func() kube.NodeStates, changed <-chan struct{}) error
	KeepNode(ctx context.Context, n Node, say, changed func(string)) error
	WatchDeployment(ctx context.Context, namespace, name string, say func(reason string)) error
}

// Progress receives the progress of an Apply, one call at a time.
type Progress interface {
	Waiting(addOn, reason string) // addOn is empty for the inventory
	Changed(object string)        // called before the add-on is done
	Done(addOn string)
}

// Kubernetes is the Cluster for a real Kubernetes API.
type Kubernetes struct{ client *kube.Client }

// Connect reads a kubeconfig. It does not open a connection.
func Connect(kubeconfig string, log *slog.Logger) (Cluster, error) {
	c, err := kube.Connect(kubeconfig, log)
	if err != nil {
		return nil, err
	}
	return Kubernetes{c}, nil
}

// Apply implements [Applier]. It may be called before the API server is ready.
func (k Kubernetes) Apply(ctx context.Context, addOns []objects.AddOn, progress Progress) error {
	_, err := k.client.Apply(ctx, addOns, func(p kube.Progress) {
		if p.Changed || p.Removed {
			progress.Changed(p.Object)
		}
		switch {
		case p.Done && p.Object == "":
			progress.Done(p.AddOn)
		case p.Waiting != "" && p.Object == "":
			progress.Waiting(p.AddOn, p.Waiting)
		case p.Waiting != "":
			progress.Waiting(p.AddOn, p.Object+": "+p.Waiting)
		}
	})
	return err
}

// Drift implements [Applier].
func (k Kubernetes) Drift(ctx context.Context, addOns []objects.AddOn, changed func(object string)) error {
	return k.client.WatchDrift(ctx, addOns, changed)
}

// Seed implements [Applier].
func (k Kubernetes) Seed(ctx context.Context, rootCA string) error {
	return k.client.Seed(ctx, objects.Seeds(rootCA))
}

// ApproveServing implements [Controller].
func (k Kubernetes) ApproveServing(ctx context.Context, known func() map[string]kube.Machine, changed <-chan struct{}) error {
	return k.client.ApproveServing(ctx, known, changed)
}

// Expel implements [Controller].
func (k Kubernetes) Expel(ctx context.Context, states func() kube.NodeStates, changed <-chan struct{}) error {
	return k.client.Expel(ctx, states, changed)
}

// The Lease of the leader election. The API server creates its namespace, so that a leader can be elected before the first apply.
const (
	leaseNamespace = "kube-system"
	leaseName      = "slipway-control"
)

// Lead implements [Elector].
func (k Kubernetes) Lead(ctx context.Context, self string, follow func(holder, why string), lead func(ctx context.Context, fence Fence) error) error {
	conf := kube.ElectConfig{Namespace: leaseNamespace, Name: leaseName, Identity: self, Follow: follow}
	return k.client.Elect(ctx, conf, func(ctx context.Context, fence kube.Fence) error {
		return lead(ctx, func(c Cluster) (Cluster, error) {
			guarded, err := c.(Kubernetes).client.Fenced(fence)
			return Kubernetes{guarded}, err
		})
	})
}

// KeepNode implements [Controller]: it keeps the Node as n describes it, and removes the startup taint once the Node is Ready.
func (k Kubernetes) KeepNode(ctx context.Context, n Node, say, changed func(string)) error {
	r := kube.Record{Name: n.Name, PodCIDR: n.PodCIDR, Labels: n.Labels}
	for _, t := range n.Taints {
		r.Taints = append(r.Taints, kube.Taint(t))
	}
	return k.client.KeepNode(ctx, r, say, changed)
}

// WatchDeployment implements [Controller]: it reports whether the Deployment is available.
func (k Kubernetes) WatchDeployment(ctx context.Context, namespace, name string, say func(reason string)) error {
	return k.client.WatchDeployment(ctx, namespace, name, say)
}
