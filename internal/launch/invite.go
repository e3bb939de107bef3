// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"fmt"
	"net"

	"github.com/slipway-project/slipway/internal/core/config"
)

// invite tells every machine that belongs to nobody which cluster to join, as soon as that is known: from then on it does not need
// this command any more. One that is in the cluster is reminded, for it may have lost where the others are.
func (u *up) invite(ctx context.Context, machines provider, all fleet, first *member) error {
	for _, m := range all {
		if m == first {
			continue
		}
		if m.phase == committedPhase {
			u.remind(ctx, machines, all, first, m)
			continue
		}
		if err := u.tell(ctx, machines, all, first, m); err != nil {
			return err
		}
		u.changed()
		u.report(Event{Stage: StagePlan, Machine: m.Name, Text: "joins"})
	}
	return nil
}

// tell has a machine join now, unless it has.
func (u *up) tell(ctx context.Context, machines provider, all fleet, first, m *member) error {
	if m.phase == committedPhase {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, u.handOverLimit())
	defer cancel()
	pin, err := u.pin(limited, machines, first.Name)
	if err != nil {
		return err
	}
	if err := m.agent.Join(limited, all.joinEndpoints(m), pin, m.Name); err != nil {
		return fmt.Errorf("machine %s: %w", m.Name, err)
	}
	return nil
}

// remind is a help and no more: a machine that has lost nothing, as nearly all, does not need it.
func (u *up) remind(ctx context.Context, machines provider, all fleet, first, m *member) {
	limited, cancel := context.WithTimeout(ctx, agentPatience)
	defer cancel()
	text, err := machines.At(first.Name).Read(limited, joinCA)
	if err != nil {
		return
	}
	if pin, err := pinOf(joinCA, text); err == nil {
		_ = m.agent.Join(limited, all.joinEndpoints(m), pin, m.Name)
	}
}

// joinEndpoints are where a machine may ask to be let in.
func (f fleet) joinEndpoints(of *member) (endpoints []string) {
	for _, c := range f {
		if c.controls() && c != of {
			endpoints = append(endpoints, net.JoinHostPort(c.address().String(), fmt.Sprint(config.JoinPort)))
		}
	}
	return endpoints
}
