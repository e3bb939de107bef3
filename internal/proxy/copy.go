// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"io"
	"net"
)

// copyHalf carries one direction to its end and passes the end on. After an error both directions are over: a connection
// that was reset must not look like one that was finished.
func copyHalf(dst, src net.Conn) {
	_, err := io.Copy(dst, src) // TCP and unix connections hand this to the kernel (splice)
	if err == nil {
		if c, ok := dst.(interface{ CloseWrite() error }); ok {
			err = c.CloseWrite()
		}
	}
	if err != nil {
		reset(dst)
		reset(src)
	}
}

func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}
