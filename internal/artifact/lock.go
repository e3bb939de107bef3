// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// lock holds the store against other builders, in this process and in others.
// The kernel lets go when the holder dies, so a lock file that was left behind
// stops nobody. While it waits it calls waiting with what the holder wrote.
// Readers need no lock.
func (s *Store) lock(ctx context.Context, about string, waiting func(holder string)) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(s.root, "lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock store: %w", err)
	}
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	// flock cannot be cancelled, so ask again and again: 50 ms is nothing
	// beside the builds that are waited for.
	for told := ""; ; {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, fmt.Errorf("lock store: %w", err)
		}
		if holder := readHolder(f); holder != told {
			waiting(holder)
			told = holder
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("lock store, held by %s: %w", readHolder(f), ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
	if err := f.Truncate(0); err != nil {
		return nil, fmt.Errorf("lock store: %w", err)
	}
	if _, err := fmt.Fprintf(f, "process %d, which is %s\n", os.Getpid(), about); err != nil {
		return nil, fmt.Errorf("lock store: %w", err)
	}
	return func() { _ = f.Close() }, nil
}

// readHolder is for people only: nothing is decided by it.
func readHolder(f *os.File) string {
	text := make([]byte, 200)
	n, err := f.ReadAt(text, 0)
	text = bytes.TrimSpace(text[:n])
	if err != nil && err != io.EOF || len(text) == 0 {
		return "another process"
	}
	return string(text)
}
