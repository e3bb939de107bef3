// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Lock keeps two commands from changing one cluster at the same time. While another holds it, waiting is called with who
// that is ("process 4711: slipway up"), again when it changes. The lock ends with unlock or with this process.
func (l *Local) Lock(ctx context.Context, cluster string, waiting func(holder string)) (unlock func(), err error) {
	if err := checkNames(cluster); err != nil {
		return nil, err
	}
	path := filepath.Join(l.root, "locks", cluster)
	told := ""
	tick := time.NewTicker(25 * time.Millisecond) // a blocking flock could not be cancelled
	defer tick.Stop()
	for {
		f, err := tryLock(path)
		if err != nil {
			return nil, fmt.Errorf("lock cluster %s: %w", cluster, err)
		}
		if f != nil {
			return func() { release(f, path) }, nil
		}
		if holder := readHolder(path); holder != "" && holder != told && waiting != nil {
			told = holder
			waiting(holder)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("lock cluster %s, held by %s: %w", cluster, orUnknown(told), ctx.Err())
		case <-tick.C:
		}
	}
}

// tryLock returns nil without an error when another process holds the lock.
func tryLock(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // the holder before has just removed the folder
	}
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
		return nil, f.Close()
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	// The holder before removed the file when it let go: the lock must be on the file that others will open.
	mine, err1 := f.Stat()
	now, err2 := os.Stat(path)
	if err1 != nil || err2 != nil || !os.SameFile(mine, now) {
		return nil, f.Close()
	}
	_ = f.Truncate(0)
	_, err = fmt.Fprintf(f, "process %d: %s", os.Getpid(), strings.Join(os.Args, " "))
	return f, err
}

func release(f *os.File, path string) {
	_ = os.Remove(path) // while it is still locked
	_ = os.Remove(filepath.Dir(path))
	_ = f.Close()
}

func readHolder(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	data, _ := io.ReadAll(io.LimitReader(f, 300))
	return string(data)
}

func orUnknown(s string) string {
	if s == "" {
		return "another process"
	}
	return s
}
