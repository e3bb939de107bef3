// SPDX-License-Identifier: Apache-2.0

// Package proxy makes a cluster's API reachable from its host without changing the host's network. In the
// machine, [ServeUnix] forwards a unix socket to the API's port; on the host, [ServeTCP] forwards a port of
// 127.0.0.1 to the socket of a control plane that answers. It copies bytes without reading them: TLS is end
// to end.
//
//	kubectl ─TCP─► 127.0.0.1:6443 (host) ─┬► …/dev-main-0/run/api.sock ─► 127.0.0.1:6443 (machine)
//	                                      └► …/dev-main-1/run/api.sock ─► 127.0.0.1:6443 (machine)
//
// Read [ServeTCP] and [Spawn] first, then race.go.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/balancer"
)

// ServeUnix listens on socketPath and forwards connections to a TCP address until ctx ends. It then closes
// all connections and returns nil. It calls target for each connection.
func ServeUnix(ctx context.Context, socketPath string, target func() string) error {
	ln, err := ListenUnix(ctx, socketPath)
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(socketPath) }()
	return serve(ctx, ln, raceAfter, func() []dialer {
		return []dialer{func(ctx context.Context) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", target())
		}}
	})
}

// ServeTCP forwards each of ln's connections to the first of the unix sockets that accepts it and answers,
// until ctx ends. It then closes all connections and returns nil. It closes ln. It calls sockets for each
// connection; they need not exist. If no socket answers, it closes the connection.
func ServeTCP(ctx context.Context, ln net.Listener, sockets func() []string) error {
	return serve(ctx, ln, raceAfter, func() []dialer { return toSockets(sockets()) })
}

// toSockets makes a dialer for each unix socket.
func toSockets(paths []string) []dialer {
	var out []dialer
	for _, path := range paths {
		out = append(out, func(ctx context.Context) (net.Conn, error) { return DialUnix(ctx, path) })
	}
	return out
}

// dialer connects to one backend.
type dialer func(ctx context.Context) (net.Conn, error)

// dialLimit limits connecting to a backend, which is on this host.
const dialLimit = 10 * time.Second

// serve accepts connections until ctx ends.
func serve(ctx context.Context, ln net.Listener, stagger time.Duration, backends func() []dialer) error {
	ctx, cancel := context.WithCancel(ctx)
	var conns sync.WaitGroup
	defer conns.Wait()
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = ln.Close() })()
	defer ln.Close()
	for {
		conn, err := ln.Accept()
		switch {
		case err == nil:
			conns.Go(func() { forward(ctx, conn, stagger, backends()) })
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept on %s: %w", ln.Addr(), err)
		default: // no file descriptors, or the client disconnected: keep serving others
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
}

// forward joins a client to a backend until both directions have ended, one has failed, or ctx is done.
func forward(ctx context.Context, client net.Conn, stagger time.Duration, backends []dialer) {
	defer client.Close()
	to, err := (&race{client: client, backends: backends, stagger: stagger}).run(ctx)
	if err != nil {
		return // the client sees a closed connection
	}
	server := to.conn
	defer server.Close()
	defer context.AfterFunc(ctx, func() { client.Close(); server.Close() })()
	var back sync.WaitGroup
	back.Go(func() { deliver(client, server, to.toClient) })
	deliver(server, client, to.toServer)
	back.Wait()
}

// deliver copies one direction, starting with what has already been read.
func deliver(dst, src net.Conn, first []byte) {
	if _, err := dst.Write(first); len(first) > 0 && err != nil {
		balancer.Reset(dst)
		balancer.Reset(src)
		return
	}
	balancer.Splice(dst, src)
}
