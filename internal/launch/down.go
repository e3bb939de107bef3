// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Down removes a cluster and everything that was made for it: processes, mounts, namespaces, cgroups, files. The component
// store stays unless purge is set and no other cluster uses it.
func (l *Launcher) Down(ctx context.Context, name string, purge bool, report func(Event)) error {
	if _, far, err := l.applied(name); err != nil || far {
		return errors.Join(err, l.release(ctx, name, report))
	}
	machines, err := l.Machines(l.runcPath(ctx))
	if err != nil {
		return err
	}
	unlock, err := machines.Lock(ctx, name, waits(report))
	if err != nil {
		return err
	}
	defer unlock()
	if err := l.stopProxy(ctx, name); err != nil {
		return err
	}
	if err := machines.Destroy(ctx, name); err != nil {
		return fmt.Errorf("destroy machines of %s: %w", name, err)
	}
	if err := os.RemoveAll(l.clusterDir(name)); err != nil {
		return fmt.Errorf("remove the cluster's files: %w", err)
	}
	if !purge {
		return nil
	}
	rest, err := machines.Clusters()
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return fmt.Errorf("keep the component store: %s still there: take down first what uses it", strings.Join(rest, ", "))
	}
	_ = os.Remove(filepath.Join(l.Root, "clusters")) // only if nothing is in it
	return os.RemoveAll(filepath.Join(l.Root, "store"))
}
