// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"

	"github.com/slipway-project/slipway/internal/sleep"
)

// listener accepts the connections of init on a free machine: real TLS and gRPC over pipes in memory.
type listener struct {
	a     *agent
	conns chan net.Conn
	once  sync.Once
	ended chan struct{}
}

func (a *agent) listen() *listener {
	l := &listener{a: a, conns: make(chan net.Conn), ended: make(chan struct{})}
	a.inits.Store(l)
	return l
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.ended:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.ended) })
	return nil
}

func (l *listener) Addr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(l.a.m.address, 9440))
}

// wire is one end of a connection, which breaks when the serving process dies.
type wire struct {
	net.Conn
	remote net.Addr
	a      *agent
}

// Write fails when the process is dead.
func (w wire) Write(p []byte) (int, error) {
	if err := w.a.alive(); err != nil {
		return 0, err
	}
	return w.Conn.Write(p)
}

func (w wire) RemoteAddr() net.Addr { return w.remote }

var errRefused = errors.New("connection refused")

// dialInit connects the operator with a machine.
func (m *machine) dialInit(ctx context.Context, _, _ string) (net.Conn, error) {
	if err := sleep.For(ctx, m.w.delay()); err != nil {
		return nil, err
	}
	a := m.running()
	if a == nil || !m.reachable() || a.inits.Load() == nil {
		return nil, errRefused
	}
	l := a.inits.Load()
	operator := net.TCPAddrFromAddrPort(netip.MustParseAddrPort("10.0.0.2:4711"))
	near, far := net.Pipe()
	select {
	case l.conns <- wire{far, operator, a}:
	case <-l.ended:
		return nil, errRefused
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	go func() {
		select {
		case <-a.gone:
		case <-a.done:
		}
		near.Close()
		far.Close()
	}()
	return wire{near, l.Addr(), a}, nil
}
