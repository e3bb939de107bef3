// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"fmt"
	"slices"

	"github.com/slipway-project/slipway/internal/machine"
)

// dismiss takes away machines that the spec no longer has. Only one that says itself that it belongs to no cluster goes: the
// cluster has to let the others go first.
func (u *up) dismiss(ctx context.Context, machines provider) error {
	list := u.machines
	var free []string
	var err error
	for _, name := range u.gone {
		at := slices.IndexFunc(list, func(m machine.Status) bool { return m.Name == name })
		if at < 0 {
			continue // it is gone already
		}
		phase := "down"
		if list[at].Running {
			if phase, err = u.phase(ctx, machines, name); err != nil {
				return err
			}
		}
		if phase != freePhase {
			return &Error{InvalidSpec, fmt.Errorf("spec.pools: machine %s is left out, and it is %s: take it out of the cluster first: "+
				"slipway node remove %s --name %s, then slipway node reset %s --name %s", name, phase, name, u.cluster.Name, name, u.cluster.Name)}
		}
		free = append(free, name)
	}
	for _, name := range free {
		if err := machines.Remove(ctx, name); err != nil {
			return fmt.Errorf("machine %s: %w", name, err)
		}
		u.changed()
		u.report(Event{Stage: StageMachine, Machine: name, Phase: "ready", Text: "removed"})
	}
	return nil
}

func (u *up) phase(ctx context.Context, machines provider, name string) (string, error) {
	limited, cancel := context.WithTimeout(ctx, u.handOverLimit())
	defer cancel()
	agent, err := agentAt(machines.At(name))
	if err != nil {
		return "", err
	}
	defer agent.Close()
	_, e, err := agent.Meet(limited)
	return e.phase, err
}
