// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// Dial connects from within the machine's network, as a process there would. The host's network has no part in it.
func (c *Cluster) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = InNetwork(filepath.Join(c.Folder(), "netns"), func() error {
		var d net.Dialer // addresses, never names: looking one up would take another thread
		conn, err = d.DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// PodNetwork is the network of the pod that a process belongs to, for [InNetwork].
func PodNetwork(p Process) string { return fmt.Sprintf("/proc/%d/ns/net", p.PID) }

// InNetwork runs f on a thread within the network namespace that the file names. Sockets that f opens stay there.
func InNetwork(path string, f func() error) (err error) {
	onOwnThread(func() {
		var ns *os.File
		if ns, err = os.Open(path); err != nil {
			return
		}
		defer ns.Close()
		if err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("enter network %s: %w", path, err)
			return
		}
		err = f()
	})
	return err
}

// onOwnThread runs f on a thread that ends afterwards, and whatever namespace f has entered with it. The first thread of the
// process cannot end and is never used.
func onOwnThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked
		if unix.Gettid() == unix.Getpid() {
			onOwnThread(f)
			runtime.UnlockOSThread()
			return
		}
		f()
	}()
	<-done
}
