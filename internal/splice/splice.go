// SPDX-License-Identifier: Apache-2.0

// Package splice joins two connections, one direction at a time, and never looks at what passes. It is what the host's proxy and a
// worker's balancer have in common.
//
//	go splice.Half(client, server)
//	splice.Half(server, client)
package splice

import (
	"io"
	"net"
)

// Half carries one direction to its end and passes the end on. After an error both directions are over: a connection that was reset
// must not look like one that was finished.
func Half(dst, src net.Conn) {
	_, err := io.Copy(dst, src) // TCP and unix connections hand this to the kernel, without a buffer of ours
	if err == nil {
		if c, ok := dst.(interface{ CloseWrite() error }); ok {
			err = c.CloseWrite()
		}
	}
	if err != nil {
		Reset(dst)
		Reset(src)
	}
}

// Reset ends a connection in such a way that its peer takes it for broken off, not for finished.
func Reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}
