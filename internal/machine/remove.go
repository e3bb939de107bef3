// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/durable"
)

// Remove takes one machine away and leaves the others of its cluster as they are. What it held is lost. When it fails, call it
// again. The caller holds [Local.Lock].
func (l *Local) Remove(ctx context.Context, cluster, name string) error {
	if err := checkNames(cluster, name); err != nil {
		return err
	}
	unlock, err := l.lockMachine(ctx, cluster, name)
	if err != nil {
		return err
	}
	defer unlock()
	if p, err := l.pid1(ctx, cluster, name); err == nil {
		if err := p.Signal(unix.SIGKILL); err != nil {
			return err
		}
	}
	if err := l.clear(ctx, cluster, name); err != nil {
		return err
	}
	if err := l.forgetCuts(cluster, name); err != nil {
		return err
	}
	dir := l.folders(cluster, name).dir
	if err := unmountBelow(dir); err != nil {
		return err
	}
	// At one moment it is there, at the next it is not: half a folder would look like a machine that is down.
	aside := filepath.Join(l.clusterDir(cluster), removedPrefix+name)
	if err := errors.Join(os.RemoveAll(aside), os.Rename(dir, aside), durable.SyncDir(l.clusterDir(cluster)), os.RemoveAll(aside)); err != nil {
		return fmt.Errorf("remove machine folder: %w", err)
	}
	l.log.Info("machine removed", "cluster", cluster, "machine", name)
	return nil
}

// removedPrefix begins with a dot: such a folder is no machine's.
const removedPrefix = ".removed-"
