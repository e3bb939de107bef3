// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"

	"github.com/slipway-project/slipway/internal/core/pin"
)

// listener limits the connections that it accepts. It closes a refused connection without an answer: an answer would cost a
// handshake.
type listener struct {
	net.Listener
	limiter *limiter
	audit   auditor

	mu          sync.Mutex         // guards the fields below
	handshaking map[*conn]struct{} // gRPC's Stop would wait for these connections
	closed      bool
}

func newListener(l net.Listener, limiter *limiter, a auditor) *listener {
	return &listener{Listener: l, limiter: limiter, audit: a, handshaking: map[*conn]struct{}{}}
}

// Accept returns the next connection that the limiter admits.
func (l *listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		now := time.Now()
		addr, source := sourceOf(raw.RemoteAddr())
		if err := l.limiter.admit(source, now); err != nil {
			l.audit.refused(source, Refused{ID: newID(), At: now, Peer: Peer{Addr: addr}, Code: codes.ResourceExhausted, Reason: err.Error()})
			if tcp, ok := raw.(*net.TCPConn); ok {
				_ = tcp.SetLinger(0) // the kernel forgets the connection at once
			}
			raw.Close()
			continue
		}
		c := &conn{Conn: raw, listener: l, addr: addr, source: source}
		c.handshakeLeft.Store(int64(l.limiter.limits.HandshakeBytes))
		c.mu.Lock()
		c.age = time.AfterFunc(l.limiter.limits.Age, c.expire)
		c.mu.Unlock()
		if l.add(c) {
			return c, nil
		}
		_ = c.Close()
	}
}

// add registers a connection whose handshake starts. It returns false if the listener is closed.
func (l *listener) add(c *conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.handshaking[c] = struct{}{}
	}
	return !l.closed
}

func (l *listener) remove(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.handshaking, c)
}

// Close also closes the connections whose handshake has not finished.
func (l *listener) Close() error {
	err := l.Listener.Close()
	l.mu.Lock()
	l.closed = true
	handshaking := slices.Collect(maps.Keys(l.handshaking))
	l.mu.Unlock()
	for _, c := range handshaking {
		_ = c.Close()
	}
	return err
}

// conn is an admitted connection. It starts with a handshake, then belongs to an unknown peer and possibly to a known one (see
// NoTimeout). Close releases it from the limiter.
type conn struct {
	net.Conn
	listener      *listener
	addr          netip.AddrPort
	source        netip.Addr
	handshakeLeft atomic.Int64 // bytes that the handshake may still read; -1 after it

	mu      sync.Mutex // guards the fields below
	age     *time.Timer
	calls   int
	known   bool
	expired bool // the age limit passed while a call was running
	closed  bool
}

func (c *conn) limits() Limits { return c.listener.limiter.limits }

// refuse audits a refusal of the connection itself. It does not close the connection.
func (c *conn) refuse(code codes.Code, reason string) {
	c.listener.audit.refused(c.source, Refused{ID: newID(), At: time.Now(), Peer: Peer{Addr: c.addr}, Code: code, Reason: reason})
}

// Read limits the bytes of a handshake: server names of 64 KiB and chains of 256 KiB are refused before they are parsed.
func (c *conn) Read(b []byte) (int, error) {
	left := c.handshakeLeft.Load()
	if left == 0 {
		return 0, fmt.Errorf("the handshake needs more than %d bytes", c.limits().HandshakeBytes)
	}
	if left > 0 && int64(len(b)) > left {
		b = b[:left]
	}
	n, err := c.Conn.Read(b)
	if left > 0 {
		c.handshakeLeft.Store(left - int64(n)) // only the handshake's goroutine reads at this stage
	} else if errors.Is(err, os.ErrDeadlineExceeded) { // gRPC sets no other deadline than the handshake's
		c.refuse(codes.DeadlineExceeded, fmt.Sprintf("HTTP/2 settings: not finished within %s", c.limits().Handshake))
	}
	return n, err
}

// expire closes the connection of an unknown peer at its age limit. If a call is running, it waits for the duration of a call.
func (c *conn) expire() {
	c.mu.Lock()
	switch {
	case c.known || c.closed:
		c.mu.Unlock()
		return
	case c.calls > 0 && !c.expired:
		c.expired = true
		c.age.Reset(c.limits().Call)
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	c.refuse(codes.DeadlineExceeded, fmt.Sprintf("the connection is older than %s", c.limits().Age))
	_ = c.Close()
}

// beginCall counts a call, which endCall must follow even after an error. It fails if the source makes too many calls.
func (c *conn) beginCall() error {
	c.mu.Lock()
	c.calls++
	known := c.known
	c.mu.Unlock()
	if known {
		return nil
	}
	return c.listener.limiter.allowCall(c.source, time.Now())
}

func (c *conn) endCall() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls--
}

// markKnown marks the connection as that of a known peer, unless its source has too many of them.
func (c *conn) markKnown() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known || c.closed || !c.listener.limiter.markKnown(c.source) {
		return
	}
	c.known = true
	c.age.Stop()
}

// SetDeadline also observes the handshake: gRPC sets a deadline before it and the zero time after it.
func (c *conn) SetDeadline(t time.Time) error {
	if t.IsZero() {
		c.listener.remove(c)
	}
	return c.Conn.SetDeadline(t)
}

// Close may be called more than once; the limiter is released once.
func (c *conn) Close() error {
	c.listener.remove(c)
	c.mu.Lock()
	first := !c.closed
	c.closed = true
	if first {
		c.age.Stop()
		c.listener.limiter.release(c.source, c.known)
	}
	c.mu.Unlock()
	return c.Conn.Close()
}

const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" // RFC 9113, 3.4: the first bytes of a client

// serverCredentials makes the handshakes of a Server. gRPC's own credentials do not report why a handshake failed.
type serverCredentials struct{ config *tls.Config }

var _ credentials.TransportCredentials = serverCredentials{}

// ServerHandshake is called by gRPC for each connection, with a deadline of Limits.Handshake on the connection.
func (s serverCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, ok := raw.(*conn)
	if !ok {
		raw.Close()
		return nil, nil, errors.New("TLS handshake: the connection was not accepted by this server's listener")
	}
	secured := tls.Server(c, s.config)
	if err := secured.HandshakeContext(context.Background()); err != nil { // it has a deadline; a context would cost a goroutine
		return nil, nil, c.handshakeFailed("TLS handshake", err)
	}
	first := make([]byte, len(preface))
	if _, err := io.ReadFull(secured, first); err != nil {
		return nil, nil, c.handshakeFailed("HTTP/2 preface", err)
	}
	if string(first) != preface {
		return nil, nil, c.handshakeFailed("HTTP/2 preface", fmt.Errorf("got %q", first))
	}
	c.handshakeLeft.Store(-1)
	state := secured.ConnectionState()
	info := authInfo{
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
		peer:           Peer{Addr: c.addr}, state: state, conn: c,
	}
	if len(state.PeerCertificates) > 0 {
		leaf := state.PeerCertificates[0]
		info.peer.Key, info.peer.Public = pin.OfCertificate(leaf), leaf.PublicKey
	}
	return &replayConn{Conn: secured, first: first}, info, nil
}

// handshakeFailed closes the connection and audits the reason.
func (c *conn) handshakeFailed(stage string, err error) error {
	_ = c.Close()
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.refuse(codes.DeadlineExceeded, fmt.Sprintf("%s: not finished within %s", stage, c.limits().Handshake))
	case errors.Is(err, net.ErrClosed): // the server was stopped
	case errors.Is(err, io.EOF):
		c.refuse(codes.Canceled, stage+": the client closed the connection")
	default:
		c.refuse(codes.Unauthenticated, fmt.Sprintf("%s: %v", stage, err))
	}
	return fmt.Errorf("%s: %w", stage, err)
}

// replayConn returns the bytes in first before those of Conn.
type replayConn struct {
	net.Conn
	first []byte
}

func (r *replayConn) Read(b []byte) (int, error) {
	if len(r.first) == 0 {
		return r.Conn.Read(b)
	}
	n := copy(b, r.first)
	r.first = r.first[n:]
	return n, nil
}

// ClientHandshake always fails: these credentials are a server's.
func (s serverCredentials) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("TLS handshake: these credentials are for servers only")
}

// Info is used by channelz only.
func (s serverCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone returns s itself: the configuration is never changed.
func (s serverCredentials) Clone() credentials.TransportCredentials { return s }

// OverrideServerName does nothing: it is for clients.
func (s serverCredentials) OverrideServerName(string) error { return nil }
