// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lockMachine keeps two that change one machine apart, in this process and others. Its lock is the machine's folder itself, so
// that nothing is left behind. A machine that goes away while somebody waits for it is an fs.ErrNotExist.
func (l *Local) lockMachine(ctx context.Context, cluster, name string) (unlock func(), err error) {
	dir := l.folders(cluster, name).dir
	for {
		unlock, err := tryLockFolder(dir, unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("machine %s of cluster %s: %w", name, cluster, fs.ErrNotExist)
		}
		if err == nil || !errors.Is(err, unix.EWOULDBLOCK) {
			return unlock, err
		}
		if err := pauseABit(ctx); err != nil { // a blocking flock could not be cancelled
			return nil, fmt.Errorf("lock machine %s, on which another slipway works: %w", name, err)
		}
	}
}

func pauseABit(ctx context.Context) error {
	timer := time.NewTimer(5 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// lockFolder waits for a lock that is held for some milliseconds only.
func lockFolder(dir string) (unlock func(), err error) {
	for {
		unlock, err := tryLockFolder(dir, unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			return unlock, err
		}
	}
}

// shareFolder is lockFolder for those who do not disturb each other.
func shareFolder(dir string) (unlock func(), err error) {
	for {
		unlock, err := tryLockFolder(dir, unix.LOCK_SH)
		if !errors.Is(err, unix.EINTR) {
			return unlock, err
		}
	}
}

func tryLockFolder(dir string, how int) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("lock folder: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), how); err != nil {
		return nil, errors.Join(fmt.Errorf("lock folder %s: %w", dir, err), f.Close())
	}
	// Somebody may have removed the folder while this one waited: the lock must be on the one that others will open.
	mine, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	now, err := os.Stat(dir)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock folder: %w", err), f.Close())
	}
	if !os.SameFile(mine, now) {
		return nil, errors.Join(fmt.Errorf("lock folder %s: it was made anew: %w", dir, unix.EINTR), f.Close())
	}
	return func() { f.Close() }, nil
}
