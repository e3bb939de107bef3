// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"time"
)

// listen keeps what the client says, until ctx ends, the client does, or the head is full.
func (c *contest) listen(ctx context.Context) {
	defer interruptible(ctx, c.client)()
	buf := make([]byte, 16<<10)
	for size := 0; size < maxHead; {
		n, err := c.client.Read(buf[:min(len(buf), maxHead-size)])
		size += n
		c.note(func() {
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

// try connects to one hop, says what the client says, and waits for the first word of an answer.
func (c *contest) try(ctx context.Context, r *runner, hop dialer) {
	dialing, cancel := context.WithTimeout(ctx, dialLimit)
	conn, err := hop(dialing)
	cancel()
	c.note(func() { r.conn, r.err = conn, err })
	if err != nil {
		return
	}
	defer interruptible(ctx, conn)()
	saying, stop := context.WithCancel(ctx)
	said := make(chan struct{})
	go func() { defer close(said); c.say(saying, r) }()
	buf := make([]byte, 16<<10)
	n, err := conn.Read(buf)
	c.note(func() {
		r.first = buf[:n]
		if n == 0 && ctx.Err() == nil {
			r.err = err
		}
	})
	if n == 0 {
		_ = conn.SetWriteDeadline(time.Unix(1, 0)) // it has lost: nobody may hang in telling it more
		stop()
	}
	<-said // with an answer, it goes on until somebody has won
	stop()
}

// say passes the head on as it grows, until ctx ends.
func (c *contest) say(ctx context.Context, r *runner) {
	for {
		c.mu.Lock()
		rest, changed := c.head[r.sent:], c.changed
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
			return // a hop that takes nothing answers nothing
		}
	}
}

// interruptible makes what blocks on conn end with ctx. After release conn is as before.
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
