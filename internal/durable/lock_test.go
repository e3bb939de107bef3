// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// LockFile reports each holder once, with the time, and finally gets the lock.
func TestLockFileReportsHolder(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	must(t, os.WriteFile(path, []byte("a longer note of a dead holder"), 0o600))
	synctest.Test(t, func(t *testing.T) {
		first, err := LockFile(t.Context(), path, "process 1: up\n", func(string) { t.Error("LockFile waited for a dead holder") })
		must(t, err)
		var holders []string
		done := make(chan error)
		go func() {
			unlock, err := LockFile(t.Context(), path, "process 2: down", func(holder string) { holders = append(holders, holder) })
			if err == nil {
				unlock()
			}
			done <- err
		}()
		time.Sleep(time.Second) // fake time
		must(t, os.WriteFile(path, []byte("process 3: up"), 0o600))
		time.Sleep(time.Second)
		first()
		must(t, <-done)
		since := `, since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d$`
		if len(holders) != 2 || !regexp.MustCompile("^process 1: up"+since).MatchString(holders[0]) || !regexp.MustCompile("^process 3: up"+since).MatchString(holders[1]) {
			t.Errorf("got holders %q", holders)
		}
	})
}

func TestLockFileCanBeCancelled(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := LockFile(t.Context(), path, "process 1", nil)
	must(t, err)
	defer unlock()
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	_, err = LockFile(ctx, path, "process 2", func(string) { cancel(why) })
	if !errors.Is(err, why) || !regexp.MustCompile("held by process 1, since ").MatchString(err.Error()) {
		t.Errorf("got %v, want the cause and the holder", err)
	}
}

// All variants exclude each other, even if each holder removes the file.
func TestOneAtATime(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	var inside, turns atomic.Int32
	var wg sync.WaitGroup
	for i := range 16 {
		lock := func() (func(), error) { return LockFile(t.Context(), path, "", nil) }
		if i%2 == 0 {
			lock = func() (func(), error) { return LockFileBriefly(path) }
		}
		wg.Go(func() {
			for range 20 {
				unlock, err := lock()
				if err != nil {
					t.Error(err)
					return
				}
				if inside.Add(1) != 1 {
					t.Error("two goroutines hold the lock")
				}
				turns.Add(1)
				inside.Add(-1)
				if err := os.Remove(path); err != nil {
					t.Error(err)
				}
				unlock()
			}
		})
	}
	wg.Wait()
	if turns.Load() != 16*20 {
		t.Errorf("got %d acquisitions", turns.Load())
	}
}

func TestLockDir(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "machine")
	must(t, os.Mkdir(dir, 0o700))
	synctest.Test(t, func(t *testing.T) {
		unlock, err := LockDir(t.Context(), dir)
		must(t, err)
		done := make(chan error)
		go func() {
			_, err := LockDir(t.Context(), dir)
			done <- err
		}()
		time.Sleep(time.Second) // fake time
		must(t, os.Remove(dir))
		unlock()
		if err := <-done; !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("removed directory: got %v, want ErrNotExist", err)
		}
		if _, err := LockDirBriefly(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("missing directory: got %v, want ErrNotExist", err)
		}
	})
}

// Shared holders exclude only exclusive ones.
func TestShareDir(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	one, err := ShareDirBriefly(dir)
	must(t, err)
	two, err := ShareDirBriefly(dir)
	must(t, err)
	one()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := LockDir(ctx, dir); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("exclusive lock during a shared one: got %v", err)
	}
	two()
	alone, err := LockDirBriefly(dir)
	must(t, err)
	alone()
}

func TestLockFileFollowsNoLink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "lock")
	must(t, os.Symlink(filepath.Join(dir, "elsewhere"), path))
	if _, err := LockFile(t.Context(), path, "process 1", nil); err == nil {
		t.Error("lock of a symlink: got nil, want an error")
	}
	onlyFiles(t, dir, "lock")
}
