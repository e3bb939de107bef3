// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"
)

const (
	raceAfter = 250 * time.Millisecond // a hop that is silent for so long is raced with the next
	maxHead   = 64 << 10               // what a client may send before a hop has answered; a TLS hello is a few KiB
)

// contest finds the hop that serves a client: the first that answers. An accepted connection says little: the agent behind
// the socket may have an API server that is down, or the whole machine may be stopped. So what the client says first is kept
// and said to the next hop too, when one fails or is silent. With TLS that is harmless: only one server gets further than
// the client's hello.
//
//	client ──hello──► hop 1  ✗ closed at once
//	       ──hello──► hop 2  … silent for 250 ms
//	       ──hello──► hop 3  ✓ answers: from here on client and hop 3 are joined
type contest struct {
	client   net.Conn
	hops     []dialer
	patience time.Duration // with a silent hop; raceAfter

	mu      sync.Mutex // guards the fields below and those of the runners
	runners []*runner
	head    []byte        // what the client has said
	ended   bool          // the client says no more
	broken  error         // the client is gone
	changed chan struct{} // closed at each change, and replaced
}

// runner is one hop's part.
type runner struct {
	conn  net.Conn
	sent  int    // of the head
	first []byte // its answer
	err   error  // it has lost
}

// joined is the winner, and what was said but not passed on yet.
type joined struct {
	conn               net.Conn
	toServer, toClient []byte
}

func newContest(client net.Conn, patience time.Duration, hops []dialer) *contest {
	return &contest{client: client, hops: hops, patience: patience, changed: make(chan struct{})}
}

// run returns when a hop has won, or all have lost. A single hop has won when it accepts.
func (c *contest) run(ctx context.Context) (joined, error) {
	if len(c.hops) == 1 {
		ctx, cancel := context.WithTimeout(ctx, dialLimit)
		defer cancel()
		conn, err := c.hops[0](ctx)
		return joined{conn: conn}, err
	}
	running, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	all.Go(func() { c.listen(running) })
	winner, err := c.decide(running, func(r *runner, hop dialer) { all.Go(func() { c.try(running, r, hop) }) })
	stop()
	all.Wait()
	for _, r := range c.runners {
		if r != winner && r.conn != nil {
			_ = r.conn.Close()
		}
	}
	if err != nil {
		return joined{}, err
	}
	return joined{winner.conn, c.head[winner.sent:], winner.first}, nil
}

// decide starts one runner after the other until there is a winner.
func (c *contest) decide(ctx context.Context, start func(*runner, dialer)) (*runner, error) {
	timer := time.NewTimer(c.patience)
	defer timer.Stop()
	next, idle, early, settled := true, false, false, false
	for {
		c.mu.Lock()
		if next && len(c.runners) < len(c.hops) {
			r := &runner{}
			c.runners = append(c.runners, r)
			start(r, c.hops[len(c.runners)-1])
			timer.Reset(c.patience)
			settled = false
		}
		winner, err := c.verdictLocked(settled)
		changed, lost, wasIdle, wasEarly := c.changed, c.lostLocked(), idle, early
		idle, early = c.idleLocked(), c.earlyLocked()
		connected := slices.ContainsFunc(c.runners, func(r *runner) bool { return r.conn != nil && r.err == nil })
		c.mu.Unlock()
		if winner != nil || err != nil {
			return winner, err
		}
		if (wasIdle && !idle) || (early && !wasEarly) {
			timer.Reset(c.patience) // silence counts from here
		}
		if next = lost; next {
			continue
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-changed:
		case <-timer.C:
			settled = early
			next = !idle && !(early && connected)
		}
	}
}

// verdictLocked is the winner if there is one, and an error when there will be none. A client that will say no more gets the
// first hop that has accepted it and has had the time to change its mind.
func (c *contest) verdictLocked(settled bool) (*runner, error) {
	if c.broken != nil {
		return nil, c.broken
	}
	lost := 0
	for _, r := range c.runners {
		switch {
		case r.err != nil:
			lost++
		case len(r.first) > 0:
			return r, nil
		}
	}
	for _, r := range c.runners {
		if settled && r.err == nil && r.conn != nil {
			return r, nil
		}
	}
	if lost == len(c.hops) {
		return nil, errors.New("no hop answers")
	}
	return nil, nil
}

// earlyLocked: the client has said all it may, or will, before an answer.
func (c *contest) earlyLocked() bool { return c.ended || len(c.head) >= maxHead }

// lostLocked reports whether all that were started have lost, and there are more.
func (c *contest) lostLocked() bool {
	for _, r := range c.runners {
		if r.err == nil {
			return false
		}
	}
	return len(c.runners) < len(c.hops)
}

// idleLocked: the last hop has accepted and waits for the client, so its silence says nothing.
func (c *contest) idleLocked() bool {
	return len(c.head) == 0 && c.runners[len(c.runners)-1].conn != nil
}

// note changes what the mutex guards, and tells everybody.
func (c *contest) note(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
	close(c.changed)
	c.changed = make(chan struct{})
}
