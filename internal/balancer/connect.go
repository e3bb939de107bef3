// SPDX-License-Identifier: Apache-2.0

package balancer

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/slipway-project/slipway/internal/splice"
)

// serve joins a client to a server until both directions have ended, one has failed, the server is given up, or ctx ends.
func (p *pool) serve(ctx context.Context, client net.Conn) {
	defer client.Close()
	conn, s, release := p.connect(ctx)
	if conn == nil {
		splice.Reset(client)
		return
	}
	defer conn.Close()
	l := &link{client, conn}
	leave := p.join(s, l)
	release()
	defer leave()
	defer context.AfterFunc(ctx, l.cut)()
	var back sync.WaitGroup
	back.Go(func() { splice.Half(client, conn) })
	splice.Half(conn, client)
	back.Wait()
}

type dialed struct {
	s    choice
	conn net.Conn
	err  error
}

// connect returns a connection to the first server that accepts. One that refuses is followed by the next at once, one that
// hangs is raced by the next; when there are no servers yet, it waits for them. Release is to be called when the connection
// counts as one of its server's.
func (p *pool) connect(ctx context.Context) (conn net.Conn, s choice, release func()) {
	ctx, cancel := context.WithTimeout(ctx, p.pace.dial)
	defer cancel()
	for {
		list, release, changed := p.order()
		if conn, s := p.race(ctx, list); conn != nil {
			return conn, s, release
		}
		release()
		if len(list) > 0 { // all have refused: the client asks again
			return nil, choice{}, nil
		}
		select {
		case <-ctx.Done():
			return nil, choice{}, nil
		case <-changed:
		}
	}
}

func (p *pool) race(ctx context.Context, list []choice) (net.Conn, choice) {
	ctx, cancel := context.WithCancel(ctx)
	results := make(chan dialed)
	running, next := 0, 0
	defer func() { // a loser that connects all the same is closed
		cancel()
		go func(n int) {
			for range n {
				if r := <-results; r.conn != nil {
					_ = r.conn.Close()
				}
			}
		}(running)
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for next < len(list) || running > 0 {
		select {
		case <-timer.C:
			if next == len(list) {
				continue
			}
			s := list[next]
			next, running = next+1, running+1
			go func() {
				conn, err := p.c.Dial(ctx, "tcp", s.addr)
				results <- dialed{s, conn, err}
			}()
			timer.Reset(p.pace.race)
		case r := <-results:
			running--
			if r.err == nil {
				return r.conn, r.s
			}
			if errors.Is(r.err, syscall.ECONNREFUSED) {
				p.set(r.s.server, out, "it refuses connections")
			}
			timer.Reset(0)
		}
	}
	return nil, choice{}
}
