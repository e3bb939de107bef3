// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/broadcast"
)

const (
	raceAfter = 250 * time.Millisecond // if a backend has not answered by then, the next one is tried in parallel
	maxHead   = 64 << 10               // limit of what a client may send before an answer; a TLS ClientHello is a few KiB
)

// race finds the backend for a client: the first one that answers. An accepted connection is not enough: the
// agent behind the socket may have a failed API server, or the whole machine may be frozen. So the first
// bytes from the client are kept and sent to the next backend, too, when one fails or does not answer. With
// TLS this is safe: only one server gets more than the ClientHello.
//
//	client ──hello──► backend 1  ✗ closed at once
//	       ──hello──► backend 2  … no answer for 250 ms
//	       ──hello──► backend 3  ✓ answers: from here on client and backend 3 are joined
type race struct {
	client   net.Conn
	backends []dialer
	stagger  time.Duration // time between attempts; raceAfter

	mu       sync.Mutex // guards the fields below and those of the attempts
	attempts []*attempt
	head     []byte // what the client has sent
	ended    bool   // the client has closed its side
	broken   error  // reading from the client failed
	changed  broadcast.Signal
}

// attempt is the state of one backend.
type attempt struct {
	conn  net.Conn
	sent  int    // bytes of the head sent
	first []byte // start of the answer
	err   error  // not nil if it has failed
}

// joined is the winning connection, and the bytes that were read but not delivered yet.
type joined struct {
	conn               net.Conn
	toServer, toClient []byte
}

// run returns when a backend has won or all have failed. A single backend wins when it accepts.
func (c *race) run(ctx context.Context) (joined, error) {
	if len(c.backends) == 1 {
		ctx, cancel := context.WithTimeout(ctx, dialLimit)
		defer cancel()
		conn, err := c.backends[0](ctx)
		return joined{conn: conn}, err
	}
	running, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	all.Go(func() { c.readClient(running) })
	winner, err := c.decide(running, func(r *attempt, backend dialer) { all.Go(func() { c.try(running, r, backend) }) })
	stop()
	all.Wait()
	for _, r := range c.attempts {
		if r != winner && r.conn != nil {
			_ = r.conn.Close()
		}
	}
	if err != nil {
		return joined{}, err
	}
	return joined{winner.conn, c.head[winner.sent:], winner.first}, nil
}

// decide starts one attempt after the other until there is a winner.
func (c *race) decide(ctx context.Context, start func(*attempt, dialer)) (*attempt, error) {
	timer := time.NewTimer(c.stagger)
	defer timer.Stop()
	next, idle, complete, settled := true, false, false, false
	for {
		c.mu.Lock()
		if next && len(c.attempts) < len(c.backends) {
			r := &attempt{}
			c.attempts = append(c.attempts, r)
			start(r, c.backends[len(c.attempts)-1])
			timer.Reset(c.stagger)
			settled = false
		}
		winner, err := c.winnerLocked(settled)
		changed, failed, wasIdle, wasComplete := c.changed.Wait(), c.failedLocked(), idle, complete
		idle, complete = c.idleLocked(), c.completeLocked()
		connected := slices.ContainsFunc(c.attempts, func(r *attempt) bool { return r.conn != nil && r.err == nil })
		c.mu.Unlock()
		if winner != nil || err != nil {
			return winner, err
		}
		if (wasIdle && !idle) || (complete && !wasComplete) {
			timer.Reset(c.stagger) // measure the silence from here
		}
		if next = failed; next {
			continue
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-changed:
		case <-timer.C:
			settled = complete
			next = !idle && !(complete && connected)
		}
	}
}

// winnerLocked returns the winner if there is one, and an error if there cannot be one. If the client sends
// nothing more, the winner is the first backend that has accepted and did not fail for a while (settled).
func (c *race) winnerLocked(settled bool) (*attempt, error) {
	if c.broken != nil {
		return nil, c.broken
	}
	failed := 0
	for _, r := range c.attempts {
		switch {
		case r.err != nil:
			failed++
		case len(r.first) > 0:
			return r, nil
		}
	}
	for _, r := range c.attempts {
		if settled && r.err == nil && r.conn != nil {
			return r, nil
		}
	}
	if failed == len(c.backends) {
		return nil, errors.New("no backend answers")
	}
	return nil, nil
}

// completeLocked reports whether the head will not grow: the client has closed its side or reached the limit.
func (c *race) completeLocked() bool { return c.ended || len(c.head) >= maxHead }

// failedLocked reports whether all attempts have failed and there are more backends.
func (c *race) failedLocked() bool {
	for _, r := range c.attempts {
		if r.err == nil {
			return false
		}
	}
	return len(c.attempts) < len(c.backends)
}

// idleLocked reports whether the last backend has accepted and waits for the client, so that its silence
// means nothing.
func (c *race) idleLocked() bool {
	return len(c.head) == 0 && c.attempts[len(c.attempts)-1].conn != nil
}

// update changes the state and wakes the waiting goroutines.
func (c *race) update(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
	c.changed.Notify()
}

// readClient reads what the client sends until ctx ends, the client does, or the head is full.
func (c *race) readClient(ctx context.Context) {
	defer interruptible(ctx, c.client)()
	buf := make([]byte, 16<<10)
	for size := 0; size < maxHead; {
		n, err := c.client.Read(buf[:min(len(buf), maxHead-size)])
		size += n
		c.update(func() {
			c.head = append(c.head, buf[:n]...)
			switch {
			case errors.Is(err, io.EOF):
				c.ended = true
			case err != nil && ctx.Err() == nil:
				c.broken = err
			}
		})
		if err != nil {
			return
		}
	}
}

// try connects to a backend, sends it the head, and waits for the start of an answer.
func (c *race) try(ctx context.Context, r *attempt, backend dialer) {
	dialing, cancel := context.WithTimeout(ctx, dialLimit)
	conn, err := backend(dialing)
	cancel()
	c.update(func() { r.conn, r.err = conn, err })
	if err != nil {
		return
	}
	defer interruptible(ctx, conn)()
	sending, stop := context.WithCancel(ctx)
	sent := make(chan struct{})
	go func() { defer close(sent); c.sendHead(sending, r) }()
	buf := make([]byte, 16<<10)
	n, err := conn.Read(buf)
	c.update(func() {
		r.first = buf[:n]
		if n == 0 && ctx.Err() == nil {
			r.err = err
		}
	})
	if n == 0 {
		_ = conn.SetWriteDeadline(time.Unix(1, 0)) // it has lost: end a blocked write
		stop()
	}
	<-sent // after an answer, sendHead continues until there is a winner
	stop()
}

// sendHead sends the head to a backend as it grows, until ctx ends.
func (c *race) sendHead(ctx context.Context, r *attempt) {
	for {
		c.mu.Lock()
		rest, changed := c.head[r.sent:], c.changed.Wait()
		c.mu.Unlock()
		if len(rest) == 0 {
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
			continue
		}
		n, err := r.conn.Write(rest)
		c.mu.Lock()
		r.sent += n
		c.mu.Unlock()
		if err != nil {
			return // a backend that does not read does not answer either
		}
	}
}

// interruptible makes calls on conn fail when ctx ends. release restores conn.
func interruptible(ctx context.Context, conn net.Conn) (release func()) {
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)); close(done) })
	return func() {
		if !stop() {
			<-done
		}
		_ = conn.SetDeadline(time.Time{})
	}
}
