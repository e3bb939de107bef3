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

// Who waits is told for whom and since when, once for each, and gets the lock in the end.
func TestLockFileTellsOfTheHolder(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	must(t, os.WriteFile(path, []byte("a longer note of somebody who is dead"), 0o600))
	synctest.Test(t, func(t *testing.T) {
		first, err := LockFile(t.Context(), path, "process 1: up\n", func(string) { t.Error("a dead holder was waited for") })
		must(t, err)
		var told []string
		done := make(chan error)
		go func() {
			unlock, err := LockFile(t.Context(), path, "process 2: down", func(holder string) { told = append(told, holder) })
			if err == nil {
				unlock()
			}
			done <- err
		}()
		time.Sleep(time.Second) // of the test's own clock
		must(t, os.WriteFile(path, []byte("process 3: up"), 0o600))
		time.Sleep(time.Second)
		first()
		must(t, <-done)
		since := `, since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d$`
		if len(told) != 2 || !regexp.MustCompile("^process 1: up"+since).MatchString(told[0]) || !regexp.MustCompile("^process 3: up"+since).MatchString(told[1]) {
			t.Errorf("told %q", told)
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
		t.Errorf("%v, want the cause and the holder", err)
	}
}

// However it is waited for, and though each holder removes the file, one at a time is in.
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
					t.Error("two are in")
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
		t.Errorf("%d turns", turns.Load())
	}
}

func TestLockFolder(t *testing.T) {
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
		time.Sleep(time.Second) // of the test's own clock
		must(t, os.Remove(dir))
		unlock()
		if err := <-done; !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the folder went away: %v", err)
		}
		if _, err := LockDirBriefly(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("no folder: %v", err)
		}
	})
}

// Those who share wait for nobody but who holds it alone, and who holds it alone waits for all of them.
func TestShareFolder(t *testing.T) {
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
		t.Errorf("locked while it is shared: %v", err)
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
		t.Error("a symlink was followed")
	}
	onlyFiles(t, dir, "lock")
}
