// SPDX-License-Identifier: Apache-2.0

// Package proxy makes a cluster's API reachable from its host without a change to the host's network: in the machine
// [ServeUnix] passes a unix socket on to the API's port, on the host [ServeTCP] passes a port of 127.0.0.1 on to the socket
// of a control plane that answers. It copies bytes and never looks at them; TLS goes through from end to end.
//
//	kubectl ─TCP─► 127.0.0.1:6443 (host) ─┬► …/dev-main-0/run/api.sock ─► 127.0.0.1:6443 (machine)
//	                                      └► …/dev-main-1/run/api.sock ─► 127.0.0.1:6443 (machine)
//
// Read [ServeTCP] and [Spawn] first, then contest.go.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/splice"
)

// ServeUnix listens on socketPath and passes connections on to a TCP address, which is asked for each time, until ctx ends. It
// returns nil then, after the last connection is closed.
func ServeUnix(ctx context.Context, socketPath string, target func() string) error {
	ln, err := ListenUnix(ctx, socketPath)
	if err != nil {
		return err
	}
	defer removeSocket(socketPath, ln)
	return serve(ctx, ln, raceAfter, func() []dialer {
		return []dialer{func(ctx context.Context) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", target())
		}}
	})
}

// ServeTCP passes each of ln's connections on to the first of the unix sockets that accepts it and answers, until ctx ends.
// It returns nil then, after the last connection is closed. It closes ln. The sockets are asked for each time and need not
// exist: a connection that cannot be passed on is closed.
func ServeTCP(ctx context.Context, ln net.Listener, sockets func() []string) error {
	return serve(ctx, ln, raceAfter, func() []dialer { return toSockets(sockets()) })
}

func toSockets(paths []string) []dialer {
	var out []dialer
	for _, path := range paths {
		out = append(out, func(ctx context.Context) (net.Conn, error) { return DialUnix(ctx, path) })
	}
	return out
}

// dialer connects to one next hop.
type dialer func(ctx context.Context) (net.Conn, error)

// dialLimit bounds a connection to the next hop, which is on this host.
const dialLimit = 10 * time.Second

func serve(ctx context.Context, ln net.Listener, patience time.Duration, hops func() []dialer) error {
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
			conns.Go(func() { pass(ctx, conn, patience, hops()) })
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept on %s: %w", ln.Addr(), err)
		default: // out of files, or a client that went away: others must not suffer
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
}

// pass joins a client to a new connection until both directions have ended, one has failed, or ctx is done.
func pass(ctx context.Context, client net.Conn, patience time.Duration, hops []dialer) {
	defer client.Close()
	to, err := newContest(client, patience, hops).run(ctx)
	if err != nil {
		return // the client sees its connection end; there is nobody else to tell
	}
	server := to.conn
	defer server.Close()
	defer context.AfterFunc(ctx, func() { client.Close(); server.Close() })()
	var back sync.WaitGroup
	back.Go(func() { deliver(client, server, to.toClient) })
	deliver(server, client, to.toServer)
	back.Wait()
}

// deliver carries one direction, beginning with what has been read already.
func deliver(dst, src net.Conn, first []byte) {
	if _, err := dst.Write(first); len(first) > 0 && err != nil {
		splice.Reset(dst)
		splice.Reset(src)
		return
	}
	splice.Half(dst, src)
}
