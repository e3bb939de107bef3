// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"

	"github.com/slipway-project/slipway/internal/core/objects"
	"github.com/slipway-project/slipway/internal/kube"
)

// Cluster is the Kubernetes API as the role needs it. The API being away is waited out, with the reason told.
type Cluster interface {
	Applier
	Keeper
	Elector
}

// Elector chooses one of several control planes.
type Elector interface {
	// Lead calls lead whenever self is the leader, with a context that ends before another leads, until ctx ends or lead
	// returns by itself. follow is told who leads, or why nobody knows.
	Lead(ctx context.Context, self string, follow func(holder, why string), lead func(ctx context.Context, fence Fence) error) error
}

// Fence makes of a connection one that writes only while it is certain that this machine leads.
type Fence func(Cluster) (Cluster, error)

// Applier is what needs every right: it makes what the cluster should have.
type Applier interface {
	// Apply makes the cluster have exactly these add-ons. It blocks until it has succeeded or an object is refused.
	Apply(ctx context.Context, addOns []objects.AddOn, tell Teller) error
	// Drift tells, until ctx ends, of each object of the add-ons that is no longer as it was.
	Drift(ctx context.Context, addOns []objects.AddOn, changed func(object string)) error
	// Seed makes what the first pods wait for, in the namespaces that every cluster has.
	Seed(ctx context.Context, rootCA string) error
}

// Keeper is what the role does until ctx ends, with rights for that alone. say is told each time a state changes: the reason why
// it is not as it should be, or nothing when it is.
type Keeper interface {
	// ApproveServing believes what is known of the machines; it looks again at what it could not decide when changed says so.
	ApproveServing(ctx context.Context, known func() map[string]kube.Machine, changed <-chan struct{}) error
	// Expel keeps those out that were removed; it looks again when changed says so.
	Expel(ctx context.Context, standing func() kube.NodeStates, changed <-chan struct{}) error
	KeepNode(ctx context.Context, n Node, say, changed func(string)) error
	WatchDeployment(ctx context.Context, namespace, name string, say func(reason string)) error
}

// Teller is told how an apply gets on, one call at a time.
type Teller struct {
	Waiting func(addOn, reason string)
	Changed func(object string) // before the add-on is done
	Done    func(addOn string)
}
