// SPDX-License-Identifier: Apache-2.0

package balancer

import (
	"io"
	"net"
)

// Splice copies src to dst until the end of src, and then closes the write side of dst. After an error it resets both
// connections, so that the peers do not take them for finished. Call it once per direction.
//
//	go balancer.Splice(client, server)
//	balancer.Splice(server, client)
func Splice(dst, src net.Conn) {
	_, err := io.Copy(dst, src) // for TCP and unix connections the kernel copies, without a buffer
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

// Reset closes a connection with a TCP reset, so that its peer does not take it for finished.
func Reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}
