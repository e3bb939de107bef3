// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// onOwnThread runs f on an operating system thread that ends afterwards, so that f may change the thread's namespaces.
// Processes that f starts begin in them. The process's first thread is never used: it cannot end, and would keep the
// namespaces alive.
func onOwnThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread dies with this goroutine
		if unix.Gettid() == unix.Getpid() {
			done <- onOwnThread(f) // this goroutine occupies the first thread meanwhile
			runtime.UnlockOSThread()
			return
		}
		done <- f()
	}()
	return <-done
}

// inOwnMounts runs f where its mounts are seen by nobody but the processes that it starts, and vanish with them.
func inOwnMounts(f func() error) error {
	return onOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("make mount namespace: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("make mounts private: %w", err)
		}
		return f()
	})
}
