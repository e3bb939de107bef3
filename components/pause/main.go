// SPDX-License-Identifier: Apache-2.0

// Command pause holds a pod's namespaces open. It reaps the orphans of a pod
// that shares its process namespace and ends on SIGTERM or SIGINT. It imports
// nothing beyond signals, to stay small in memory: every pod has one.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGCHLD)
	for s := range signals {
		if s != syscall.SIGCHLD {
			return
		}
		reap()
	}
}

// reap collects every child that has ended: signals merge, so one SIGCHLD may
// stand for many.
func reap() {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if pid <= 0 || err != nil {
			return
		}
	}
}
