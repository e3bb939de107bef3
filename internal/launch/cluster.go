// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/machine"
)

// ErrNoCluster says that this host has no cluster of that name.
var ErrNoCluster = errors.New("no such cluster")

// Clusters lists the clusters of this host by name: those that have a kept spec and those that have machines. It changes
// nothing, not even by making folders.
func (l *Launcher) Clusters() ([]string, error) {
	var names []string
	for _, folder := range []string{"clusters", "machines"} {
		entries, err := os.ReadDir(filepath.Join(l.Root, folder))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("list clusters: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
				names = append(names, e.Name())
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// known fails with ErrNoCluster, and says which clusters there are.
func (l *Launcher) known(name string) error {
	names, err := l.Clusters()
	if err != nil || slices.Contains(names, name) {
		return err
	}
	hint := "make it with: slipway up"
	if name != "dev" {
		hint += " --name " + name
	}
	if len(names) > 0 {
		hint = "there is " + strings.Join(names, ", ") + "; " + hint
	}
	return fmt.Errorf("cluster %q: %w (%s)", name, ErrNoCluster, hint)
}

// machinesOf opens the machines of a cluster that exists.
func (l *Launcher) machinesOf(ctx context.Context, name string) (provider, []machine.Status, error) {
	if err := l.known(name); err != nil {
		return nil, nil, err
	}
	machines, err := l.provider(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	list, err := machines.List(ctx)
	if err != nil {
		return nil, nil, err
	}
	slices.SortFunc(list, func(a, b machine.Status) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), strings.Compare(a.Name, b.Name))
	})
	return machines, list, nil
}

// provider opens the machines of a cluster, which need not exist.
func (l *Launcher) provider(ctx context.Context, cluster string) (provider, error) {
	record, far, err := l.applied(cluster)
	if err != nil {
		return nil, err
	}
	if far {
		return l.far(ctx, cluster, record, false), nil
	}
	return l.local(cluster, l.runcPath(ctx))
}

// MachineNames lists the machines of a cluster, first one first.
func (l *Launcher) MachineNames(ctx context.Context, cluster string) (names []string, err error) {
	if r, far, err := l.applied(cluster); err != nil || far { // without a word over SSH
		for _, m := range r.Machines {
			names = append(names, m.Name)
		}
		return names, err
	}
	_, list, err := l.machinesOf(ctx, cluster)
	for _, m := range list {
		names = append(names, m.Name)
	}
	return names, err
}

// pick finds a machine by name; "" is the first one.
func pick(cluster string, list []machine.Status, name string) (machine.Status, error) {
	if len(list) == 0 {
		return machine.Status{}, fmt.Errorf("cluster %s has no machine yet: run slipway up --name %s", cluster, cluster)
	}
	if name == "" {
		return list[0], nil
	}
	var names []string
	for _, m := range list {
		if m.Name == name {
			return m, nil
		}
		names = append(names, m.Name)
	}
	return machine.Status{}, fmt.Errorf("machine %q: cluster %s has %s", name, cluster, strings.Join(names, ", "))
}

func notRunning(cluster string, m machine.Status) error {
	if m.Unreachable != "" {
		return fmt.Errorf("machine %s cannot be reached: %s", m.Name, m.Unreachable)
	}
	name := m.Name
	return fmt.Errorf("machine %s: %w: start it with slipway up --name %s", name, machine.ErrNotRunning, cluster)
}
