// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"fmt"
	"slices"

	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/sshhost"
)

// What these do is done at once, also while an up works on the cluster: failures do not wait either.

// MachineList tells how the machines of a cluster are, first one first.
func (l *Launcher) MachineList(ctx context.Context, cluster string) ([]machine.Status, error) {
	_, list, err := l.machinesOf(ctx, cluster)
	return list, err
}

// MachineStop pulls a machine's plug. It tells whether the machine ran.
func (l *Launcher) MachineStop(ctx context.Context, cluster, name string) (changed bool, err error) {
	local, m, err := l.localNamed(ctx, cluster, name)
	if err != nil {
		return false, err
	}
	return m.Running, local.PowerCut(ctx, cluster, m.Name) // of a machine that does not run it clears what is left
}

// MachineStart boots a machine as it was made, with its disk as it is. It tells whether the machine was down.
func (l *Launcher) MachineStart(ctx context.Context, cluster, name string) (changed bool, err error) {
	local, m, err := l.localNamed(ctx, cluster, name)
	if err != nil {
		return false, err
	}
	change, err := local.Start(ctx, cluster, m.Name)
	if err != nil {
		return false, err
	}
	if change.BinaryReplaced && !change.Started {
		return false, local.RestartAgent(ctx, cluster, m.Name)
	}
	return change.Started, nil
}

// MachineCut pulls a machine's network cable, or with from parts it from that machine only. It tells whether it was in.
func (l *Launcher) MachineCut(ctx context.Context, cluster, name, from string) (changed bool, err error) {
	local, m, err := l.localNamed(ctx, cluster, name)
	if err != nil {
		return false, err
	}
	if from == "" {
		return !m.Cut, local.Cut(ctx, cluster, m.Name)
	}
	return !slices.Contains(m.CutFrom, from), local.CutBetween(ctx, cluster, m.Name, from)
}

// MachineHeal plugs it in again. It tells whether anything was cut.
func (l *Launcher) MachineHeal(ctx context.Context, cluster, name string) (changed bool, err error) {
	local, m, err := l.localNamed(ctx, cluster, name)
	if err != nil {
		return false, err
	}
	return m.Cut || len(m.CutFrom) > 0, local.Heal(ctx, cluster, m.Name)
}

func (l *Launcher) machineNamed(ctx context.Context, cluster, name string) (provider, machine.Status, error) {
	machines, list, err := l.machinesOf(ctx, cluster)
	if err != nil {
		return nil, machine.Status{}, err
	}
	m, err := pick(cluster, list, name)
	return machines, m, err
}

// localNamed finds a machine of this host.
func (l *Launcher) localNamed(ctx context.Context, cluster, name string) (*machine.Local, machine.Status, error) {
	machines, m, err := l.machineNamed(ctx, cluster, name)
	if err != nil {
		return nil, m, err
	}
	here, ok := machines.(localMachines)
	if !ok {
		return nil, m, &NotHereError{m.Name, machines.(farMachines).find(m.Name).SSH}
	}
	return here.local, m, nil
}

// NotHereError says that what is asked for is done to machines of this host only, and how to get to the one that is meant.
type NotHereError struct {
	Machine string
	SSH     sshhost.Target
}

func (e *NotHereError) Error() string {
	return fmt.Sprintf("machine %s is not of this host: log in to it yourself: %s", e.Machine, e.SSH.CommandLine(false))
}
