// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
)

// listener lets only so many connections through. Whom it refuses is cut off without a word: a word costs a handshake.
type listener struct {
	net.Listener
	gate  *gate
	audit auditor

	mu      sync.Mutex         // guards the fields below
	greeted map[*conn]struct{} // connections whose handshake goes on: gRPC's Stop would wait for them
	ended   bool
}

func newListener(l net.Listener, g *gate, a auditor) *listener {
	return &listener{Listener: l, gate: g, audit: a, greeted: map[*conn]struct{}{}}
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		now := time.Now()
		addr, from := sourceOf(raw.RemoteAddr())
		if err := l.gate.admit(from, now); err != nil {
			l.audit.refused(from, Refused{ID: newID(), At: now, Peer: Peer{Addr: addr}, Code: codes.ResourceExhausted, Reason: err.Error()})
			if tcp, ok := raw.(*net.TCPConn); ok {
				_ = tcp.SetLinger(0) // no memory of it stays in the kernel
			}
			raw.Close()
			continue
		}
		c := &conn{Conn: raw, listener: l, gate: l.gate, audit: l.audit, addr: addr, from: from}
		c.left.Store(int64(l.gate.limits.HandshakeBytes))
		c.mu.Lock()
		c.age = time.AfterFunc(l.gate.limits.Age, c.old)
		c.mu.Unlock()
		if l.greet(c) {
			return c, nil
		}
		_ = c.Close()
	}
}

func (l *listener) greet(c *conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.greeted[c] = struct{}{}
	}
	return !l.ended
}

func (l *listener) forget(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.greeted, c)
}

// Close also ends the handshakes that go on.
func (l *listener) Close() error {
	err := l.Listener.Close()
	l.mu.Lock()
	l.ended = true
	greeted := slices.Collect(maps.Keys(l.greeted))
	l.mu.Unlock()
	for _, c := range greeted {
		_ = c.Close()
	}
	return err
}

// conn is one admitted connection: handshaking → a stranger's → known (see NoTimeout). Its slot is given back by Close.
type conn struct {
	net.Conn
	listener *listener
	gate     *gate
	audit    auditor
	addr     netip.AddrPort
	from     netip.Addr
	left     atomic.Int64 // bytes that the handshake may still read; -1 after it

	mu     sync.Mutex // guards the fields below
	age    *time.Timer
	calls  int
	known  bool
	late   bool // it was old and in a call
	closed bool
}

func (c *conn) refuse(code codes.Code, reason string) {
	c.audit.refused(c.from, Refused{ID: newID(), At: time.Now(), Peer: Peer{Addr: c.addr}, Code: code, Reason: reason})
}

// Read bounds what a handshake may cost: names of 64 KiB and chains of 256 KiB are refused before they are parsed.
func (c *conn) Read(b []byte) (int, error) {
	left := c.left.Load()
	if left == 0 {
		return 0, fmt.Errorf("the handshake needs more than %d bytes", c.gate.limits.HandshakeBytes)
	}
	if left > 0 && int64(len(b)) > left {
		b = b[:left]
	}
	n, err := c.Conn.Read(b)
	if left > 0 {
		c.left.Store(left - int64(n)) // the handshake's goroutine is the only one that reads yet
	} else if errors.Is(err, os.ErrDeadlineExceeded) { // gRPC sets no other deadline than the handshake's
		c.refuse(codes.DeadlineExceeded, fmt.Sprintf("HTTP/2 settings: not finished within %s", c.gate.limits.Handshake))
	}
	return n, err
}

func (c *conn) handshaken() { c.left.Store(-1) }

// old ends a stranger's connection: at once when it is in no call, otherwise after the time that a call may take.
func (c *conn) old() {
	c.mu.Lock()
	switch {
	case c.known || c.closed:
		c.mu.Unlock()
		return
	case c.calls > 0 && !c.late:
		c.late = true
		c.age.Reset(c.gate.limits.Call)
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	c.refuse(codes.DeadlineExceeded, fmt.Sprintf("the connection is older than %s", c.gate.limits.Age))
	_ = c.Close()
}

// begin counts a call; end must follow. It fails when there are too many.
func (c *conn) begin() error {
	c.mu.Lock()
	c.calls++
	known := c.known
	c.mu.Unlock()
	if known {
		return nil
	}
	return c.gate.call(c.from, time.Now())
}

func (c *conn) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls--
}

// know marks the connection as one of ours, if its source has not too many of them.
func (c *conn) know() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known || c.closed || !c.gate.know(c.from) {
		return
	}
	c.known = true
	c.age.Stop()
}

// SetDeadline is how gRPC says when the handshake must be over (a time), and that it is (none).
func (c *conn) SetDeadline(t time.Time) error {
	if t.IsZero() {
		c.listener.forget(c)
	}
	return c.Conn.SetDeadline(t)
}

func (c *conn) Close() error {
	c.listener.forget(c)
	c.mu.Lock()
	first := !c.closed
	c.closed = true
	if first {
		c.age.Stop()
		c.gate.release(c.from, c.known)
	}
	c.mu.Unlock()
	return c.Conn.Close()
}
