// SPDX-License-Identifier: Apache-2.0

package operate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/agentclient"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/inventory"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// Renewal is what was renewed on one node, and which units were restarted for it.
type Renewal struct {
	Node  string   `json:"node"`
	Names []string `json:"certificates"`
	Units []string `json:"restarted"`
}

// Certificates lists the certificates of the named nodes, or of all running nodes. With an error the list is incomplete, but
// valid.
func Certificates(ctx context.Context, inv inventory.Inventory, cluster string, nodes []string) ([]agentclient.Certificate, error) {
	targets, err := inv.Named(ctx, cluster, nodes)
	if err != nil {
		return nil, err
	}
	all, errs := []agentclient.Certificate{}, []error(nil)
	for _, t := range targets {
		err := machine.ErrNotRunning
		if t.Dial != nil {
			err = t.With(ctx, func(ctx context.Context, a *agentclient.Agent) error {
				list, err := a.Certificates(ctx)
				for _, c := range list {
					c.Node = t.Machine
					all = append(all, c)
				}
				return err
			})
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("certificates of %s: %w", t.Machine, agentclient.Plain(err)))
		}
	}
	return all, errors.Join(errs...)
}

// RenewCertificates renews certificates now, on one node after the other, and waits until each node is ready again. Without
// nodes it is done on all of them; without names, for all certificates that can be renewed. It continues when a node fails.
func RenewCertificates(ctx context.Context, inv inventory.Inventory, cluster string, nodes, names []string, progress func(node, text string)) ([]Renewal, error) {
	targets, err := inv.Named(ctx, cluster, nodes)
	if err != nil {
		return nil, err
	}
	done, errs := []Renewal{}, []error(nil)
	for _, t := range targets {
		r, err := renew(ctx, t, names, func(text string) { progress(t.Machine, text) })
		if ctx.Err() != nil {
			return done, ctx.Err()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("renew certificates of %s: %w", t.Machine, agentclient.Plain(err)))
			continue
		}
		done = append(done, r)
	}
	return done, errors.Join(errs...)
}

func renew(ctx context.Context, t agentclient.Target, names []string, progress func(string)) (Renewal, error) {
	r := Renewal{Node: t.Machine, Units: []string{}}
	if t.Dial == nil {
		return r, fmt.Errorf("%w: its agent renews certificates when it is started", machine.ErrNotRunning)
	}
	agent, err := agentclient.Dial(t.Dial)
	if err != nil {
		return r, err
	}
	defer agent.Close()
	limited, cancel := context.WithTimeout(ctx, agentclient.Timeout)
	r.Names, err = agent.Renew(limited, names)
	cancel()
	if err != nil {
		return r, err
	}
	restarted := map[string]bool{}
	err = agent.Watch(ctx, func(s reconcile.Status, converged bool, _ int) bool {
		unit, isUnit := strings.CutPrefix(s.Ref, "unit/")
		switch {
		case s.Phase == reconcile.Failing:
			progress(s.Ref + ": " + s.Error)
		case s.Phase == reconcile.Waiting && isUnit:
			progress(s.Ref + ": waiting for " + s.What)
		case s.Phase == reconcile.Doing && isUnit && s.Step != nil && s.Step.Verb == plan.Replace: // creating one is not a restart
			restarted[unit] = true
		}
		return converged
	})
	r.Units = append(r.Units, slices.Sorted(maps.Keys(restarted))...)
	return r, err
}
