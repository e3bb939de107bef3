// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/sleep"
)

// LockFile locks the file at path exclusively and creates it if it does not exist. It waits while another
// process, or another caller in this process, holds the lock. The kernel releases the lock when its holder
// dies, so a leftover file does not block. Only the holder may remove the file.
//
// note describes the holder and may be empty. While LockFile waits, it calls say, if not nil, with the
// holder's note and the time of the lock ("process 4711: slipway up, since 2026-11-20 12:00:00"), and again
// when the holder changes. Notes are for messages only.
func LockFile(ctx context.Context, path, note string, say func(holder string)) (unlock func(), err error) {
	f, err := wait(ctx, path, openLock, say)
	if err != nil {
		return nil, err
	}
	_ = f.Truncate(0) // ignore errors: a full disk must not prevent the removal of a cluster
	_, _ = f.WriteAt([]byte(note), 0)
	return func() { _ = f.Close() }, nil
}

// LockDir is LockFile for an existing directory, without a note. The error is an fs.ErrNotExist if the
// directory is removed.
func LockDir(ctx context.Context, dir string) (unlock func(), err error) {
	f, err := wait(ctx, dir, os.Open, nil)
	if err != nil {
		return nil, err
	}
	return func() { _ = f.Close() }, nil
}

// LockFileBriefly is LockFile for locks that are held for milliseconds only: the wait cannot be interrupted.
func LockFileBriefly(path string) (unlock func(), err error) {
	return hold(path, unix.LOCK_EX, openLock)
}

// LockDirBriefly is LockDir for locks that are held for milliseconds only: the wait cannot be interrupted.
func LockDirBriefly(dir string) (unlock func(), err error) { return hold(dir, unix.LOCK_EX, os.Open) }

// ShareDirBriefly is LockDirBriefly with a shared lock.
func ShareDirBriefly(dir string) (unlock func(), err error) { return hold(dir, unix.LOCK_SH, os.Open) }

// openLock opens or creates a lock file. It does not follow a symlink.
func openLock(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
}

// wait polls, because a blocking flock cannot be cancelled.
func wait(ctx context.Context, path string, open func(string) (*os.File, error), say func(string)) (*os.File, error) {
	const longest = 16 * time.Millisecond
	holder := ""
	for pause := time.Millisecond; ; pause = min(2*pause, longest) {
		f, err := try(path, unix.LOCK_EX|unix.LOCK_NB, open)
		if f != nil || err != nil {
			return f, err
		}
		if now := noteOf(path); now != "" && now != holder {
			holder = now
			if say != nil {
				say(holder)
			}
		}
		if err := sleep.For(ctx, pause); err != nil {
			if holder == "" {
				holder = "another process"
			}
			return nil, fmt.Errorf("lock %s, held by %s: %w", path, holder, err)
		}
	}
}

// hold blocks until it has the lock.
func hold(path string, how int, open func(string) (*os.File, error)) (unlock func(), err error) {
	for {
		f, err := try(path, how, open)
		if err != nil {
			return nil, err
		}
		if f != nil {
			return func() { _ = f.Close() }, nil
		}
	}
}

// try returns nil without an error if the caller has to try again.
func try(path string, how int, open func(string) (*os.File, error)) (*os.File, error) {
	f, err := open(path)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	err = unix.Flock(int(f.Fd()), how)
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
		return nil, f.Close()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	// The previous holder may have removed the file: the lock must be on the file that others will open.
	mine, err := f.Stat()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock: %w", err), f.Close())
	}
	now, err := os.Stat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(fmt.Errorf("lock: %w", err), f.Close())
	}
	if err != nil || !os.SameFile(mine, now) {
		return nil, f.Close()
	}
	return f, nil
}

// noteOf is the note of the file's holder and its time, the file's modification time. It is empty if there is
// no note.
func noteOf(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return ""
	}
	text, _ := io.ReadAll(io.LimitReader(f, 300))
	if text = bytes.TrimSpace(text); len(text) == 0 {
		return ""
	}
	return string(text) + ", since " + info.ModTime().Format(time.DateTime)
}
