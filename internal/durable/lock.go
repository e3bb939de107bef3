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

// LockFile waits until nobody else, in this process or another, holds the file at path, and makes the file if there is none. The
// kernel lets go when the holder dies, so a file that was left behind stops nobody; whoever removes it does so while holding it.
//
// The note says who holds it; empty: nobody asks. While it waits LockFile calls say, if that is set, with the other's note and
// since when it holds ("process 4711: slipway up, since 2026-11-20 12:00:00"), again when that changes. Notes are for people:
// nothing is decided by them.
func LockFile(ctx context.Context, path, note string, say func(holder string)) (unlock func(), err error) {
	f, err := wait(ctx, path, openLock, say)
	if err != nil {
		return nil, err
	}
	_ = f.Truncate(0) // on a full disk, too, somebody must be able to take things away
	_, _ = f.WriteAt([]byte(note), 0)
	return func() { _ = f.Close() }, nil
}

// LockFolder is LockFile for a folder, which is there and has no note. A folder that goes away meanwhile is an fs.ErrNotExist.
func LockFolder(ctx context.Context, dir string) (unlock func(), err error) {
	f, err := wait(ctx, dir, os.Open, nil)
	if err != nil {
		return nil, err
	}
	return func() { _ = f.Close() }, nil
}

// HoldFile is LockFile for what is held for some milliseconds only: the wait cannot be broken off.
func HoldFile(path string) (unlock func(), err error) { return hold(path, unix.LOCK_EX, openLock) }

// HoldFolder is LockFolder for what is held for some milliseconds only: the wait cannot be broken off.
func HoldFolder(dir string) (unlock func(), err error) { return hold(dir, unix.LOCK_EX, os.Open) }

// ShareFolder is HoldFolder for those who do not disturb each other.
func ShareFolder(dir string) (unlock func(), err error) { return hold(dir, unix.LOCK_SH, os.Open) }

func openLock(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
}

// wait asks again and again, because the kernel's own wait cannot be cancelled.
func wait(ctx context.Context, path string, open func(string) (*os.File, error), say func(string)) (*os.File, error) {
	const longest = 16 * time.Millisecond
	told := ""
	for pause := time.Millisecond; ; pause = min(2*pause, longest) {
		f, err := try(path, unix.LOCK_EX|unix.LOCK_NB, open)
		if f != nil || err != nil {
			return f, err
		}
		if holder := noteOf(path); holder != "" && holder != told {
			told = holder
			if say != nil {
				say(holder)
			}
		}
		if err := sleep.For(ctx, pause); err != nil {
			if told == "" {
				told = "somebody else"
			}
			return nil, fmt.Errorf("lock %s, held by %s: %w", path, told, err)
		}
	}
}

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

// try returns nil without an error when it has to be tried again.
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
	// The holder before may have removed it: the lock must be on what others will open.
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

// noteOf is empty where nobody has left a note. A file's time is the time of its note.
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
