// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/slipway-project/slipway/internal/durable"
)

// Lock keeps two commands from changing one cluster at the same time. While another holds it, waiting is called with who
// that is and since when ("process 4711: slipway up, since …"), again when it changes. The lock ends with unlock or with this
// process.
func (l *Local) Lock(ctx context.Context, cluster string, waiting func(holder string)) (unlock func(), err error) {
	if err := checkNames(cluster); err != nil {
		return nil, err
	}
	path := filepath.Join(l.root, "locks", cluster)
	note := fmt.Sprintf("process %d: %s", os.Getpid(), strings.Join(os.Args, " "))
	for {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, fmt.Errorf("lock cluster %s: %w", cluster, err)
		}
		held, err := durable.LockFile(ctx, path, note, waiting)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the holder before has just removed the folder
		}
		if err != nil {
			return nil, fmt.Errorf("lock cluster %s: %w", cluster, err)
		}
		return func() {
			_ = os.Remove(path) // while it is still locked
			_ = os.Remove(filepath.Dir(path))
			held()
		}, nil
	}
}

// lockMachine keeps two that change one machine apart, in this process and others. Its lock is the machine's folder itself, so
// that nothing is left behind. A machine that goes away while somebody waits for it is an fs.ErrNotExist.
func (l *Local) lockMachine(ctx context.Context, cluster, name string) (unlock func(), err error) {
	unlock, err = durable.LockFolder(ctx, l.folders(cluster, name).dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("machine %s of cluster %s: %w", name, cluster, fs.ErrNotExist)
	}
	if err != nil {
		return nil, fmt.Errorf("lock machine %s, on which another slipway works: %w", name, err)
	}
	return unlock, nil
}
