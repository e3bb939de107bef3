// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/sleep"
)

// lookRemoved is how long a machine may take to be ready before the cluster is asked whether it knows the machine at all.
const lookRemoved = 2 * time.Second

// awaitKnown is await, which ends with what to do when the cluster has removed the machine: it would wait for ever.
func (u *up) awaitKnown(ctx context.Context, m *member) error {
	if m.phase != committedPhase || m.key == "" || u.o.Wait == 0 {
		return u.await(ctx, m)
	}
	group, both := errgroup.WithContext(ctx)
	asking, enough := context.WithCancel(both)
	group.Go(func() error {
		defer enough()
		return u.await(both, m)
	})
	group.Go(func() error { return u.stillKnown(asking, m) })
	return group.Wait()
}

// stillKnown asks until somebody answers.
func (u *up) stillKnown(ctx context.Context, m *member) error {
	for sleep.For(ctx, lookRemoved) == nil {
		nodes, err := u.Nodes(ctx, u.cluster.Name)
		if err == nil && ctx.Err() == nil && wasRemoved(nodes, m.enrolment) {
			return fmt.Errorf("machine %s was removed from cluster %s, and has not forgotten it: slipway node reset %s --name %s, and then slipway up lets it in again as a new one; or leave it out of the spec",
				m.Name, u.cluster.Name, m.Name, u.cluster.Name)
		}
		if err == nil {
			return nil
		}
	}
	return nil
}

// wasRemoved: the records are there, and they have neither the machine nor another one in its place. Without the records, which
// alone know keys, nobody knows.
func wasRemoved(nodes []Node, e enrolment) bool {
	return slices.ContainsFunc(nodes, func(n Node) bool { return n.Key != "" }) &&
		!slices.ContainsFunc(nodes, func(n Node) bool { return n.Key != "" && (n.Key == string(e.key) || n.Name == e.node) })
}
