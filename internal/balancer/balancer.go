// SPDX-License-Identifier: Apache-2.0

// Package balancer is a worker's way to the API: a TCP balancer on the node's own loopback, over the API servers of the
// node's roster file. It asks each of them twice a second whether it is ready, sends new connections to those that are, and
// closes the connections to one that is lost, so that clients go elsewhere within two seconds instead of waiting for TCP. It is
// a process of its own and survives the agent. It never looks inside a connection, never talks to the API on anybody's
// behalf, and never refuses a client without having tried every server that it knows: that a server looks ill is not known
// to be true.
//
//	kubelet ─► 127.0.0.1:6443 ─┬─► 10.89.0.10:6443  ready
//	                           ├─► 10.89.0.11:6443  out: no answer for 1.5s
//	                           └─► 10.89.0.12:6443  ready
//
// Read [Config] and [Run] first, then pool.go.
package balancer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/core/roster"
	"github.com/slipway-project/slipway/internal/sleep"
)

// Config says what to balance. Roster, JoinCA and ClusterCA are files, and read again when they matter.
type Config struct {
	Listen    string // "127.0.0.1:6443"
	Roster    string // the node's roster file; it may come later
	JoinCA    string // certificate that signs the roster
	ClusterCA string // certificate that signs the API servers' certificates
	Log       *slog.Logger

	Listener net.Listener                                                      // optional: instead of Listen
	Dial     func(ctx context.Context, network, addr string) (net.Conn, error) // optional: net.Dialer's
	Rand     func(n int) int                                                   // optional: chooses among equals
	Ready    func() error                                                      // optional: called once, when clients can connect
}

// pace is how long everything takes. A lost server is out after health + late + again at most: two seconds.
type pace struct {
	health  time.Duration // between two questions
	late    time.Duration // a question without an answer for so long is a miss
	again   time.Duration // what the second question, on a new connection, gets
	race    time.Duration // a server that has not accepted by then is raced with the next
	dial    time.Duration // all servers together
	look    time.Duration // the roster file is read again, whatever inotify said
	backOff time.Duration // after a failed accept
}

func usualPace() pace {
	return pace{
		health: 500 * time.Millisecond, late: time.Second, again: 500 * time.Millisecond, race: 250 * time.Millisecond,
		dial: 10 * time.Second, look: 15 * time.Second, backOff: 10 * time.Millisecond,
	}
}

// Run balances until ctx ends, and returns nil then, after the last connection is closed.
func Run(ctx context.Context, c Config) error { return run(ctx, c, usualPace()) }

func run(ctx context.Context, c Config, p pace) error {
	if c.Dial == nil {
		c.Dial = (&net.Dialer{}).DialContext
	}
	if c.Rand == nil {
		c.Rand = rand.IntN
	}
	ln := c.Listener
	if ln == nil {
		var err error
		if ln, err = (&net.ListenConfig{}).Listen(ctx, "tcp", c.Listen); err != nil {
			return fmt.Errorf("listen for API clients on %s: %w", c.Listen, err)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	defer ln.Close()
	defer context.AfterFunc(ctx, func() { _ = ln.Close() })()
	if c.Ready != nil {
		if err := c.Ready(); err != nil {
			return fmt.Errorf("say that the balancer is ready: %w", err)
		}
	}
	pool := newPool(c, p, ln.Addr().String())
	all.Go(func() { pool.follow(ctx) })
	for {
		conn, err := ln.Accept()
		switch {
		case err == nil:
			all.Go(func() { pool.serve(ctx, conn) })
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept API clients: %w", err)
		default: // out of files, or a client that went away: others must not suffer
			_ = sleep.For(ctx, p.backOff) // the next accept tells whether ctx has ended
		}
	}
}

// withPort gives a load balancer that names no port the usual one.
func withPort(endpoint string) string {
	if _, _, err := net.SplitHostPort(endpoint); err != nil {
		return net.JoinHostPort(endpoint, strconv.Itoa(roster.APIPort))
	}
	return endpoint
}
