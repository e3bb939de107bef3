// SPDX-License-Identifier: Apache-2.0

package joinclient

import (
	"context"
	"fmt"
	"net/netip"
	"time"
)

// racer is something opened at an endpoint. Its context lives until close.
type racer interface{ close() }

type finish[R racer] struct {
	at    netip.AddrPort
	racer R
	err   error
}

// race opens endpoints until one answers: the next is begun when one fails, and 250 ms after the one before at the latest. Those
// that come second are closed. failed hears of each that did not answer, before race returns.
func race[R racer](ctx context.Context, endpoints []netip.AddrPort, open func(context.Context, netip.AddrPort) (R, error), failed func(netip.AddrPort, error)) (first R, ok bool) {
	ctx, cancel := context.WithCancel(ctx)
	finishes := make(chan finish[R], len(endpoints))
	next, running := 0, 0
	timer := time.NewTimer(0) // begins the first
	defer timer.Stop()
	for {
		begin := timer.C
		if next == len(endpoints) {
			begin = nil
			if running == 0 {
				cancel()
				return first, false
			}
		}
		select {
		case <-begin:
			at := endpoints[next]
			next, running = next+1, running+1
			timer.Reset(stagger)
			go func() {
				r, err := open(ctx, at)
				finishes <- finish[R]{at, r, err}
			}()
		case f := <-finishes:
			running--
			if f.err == nil {
				go closeRest(cancel, finishes, running)
				return f.racer, true
			}
			failed(f.at, f.err)
			timer.Reset(0)
		}
	}
}

// closeRest ends what came second. An opened racer has a context of its own, so that the end of the race does not end the winner.
func closeRest[R racer](cancel context.CancelFunc, finishes <-chan finish[R], running int) {
	cancel()
	for range running {
		if f := <-finishes; f.err == nil {
			f.racer.close()
		}
	}
}

// leash is the context of something that is opened for a race and may outlive it, under one limit of time after the other.
type leash struct {
	cancel context.CancelCauseFunc
	timer  *time.Timer
	cause  func() error // why it has ended; nil while it has not
	free   func() bool  // lets the race go: its end is not this one's end any more
}

// newLeash makes a context that ends with base, and with the race until it is freed.
func newLeash(base, race context.Context, limit time.Duration, what string) (context.Context, *leash) {
	ctx, cancel := context.WithCancelCause(base)
	l := &leash{cancel: cancel, cause: func() error { return context.Cause(ctx) }, free: context.AfterFunc(race, func() { cancel(context.Cause(race)) })}
	l.limit(limit, what)
	return ctx, l
}

// limit begins a new limit in place of the old one; 0 is none.
func (l *leash) limit(d time.Duration, what string) {
	if l.timer != nil {
		l.timer.Stop()
	}
	if d > 0 {
		l.timer = time.AfterFunc(d, func() { l.cancel(fmt.Errorf("%s within %s", what, d)) })
	}
}

// broken ends the context and closes what was opened of a connection. It returns why the context has ended, if it has and not
// because of base, else err.
func (l *leash) broken(base context.Context, conn Conn, err error) error {
	if why := l.cause(); why != nil && base.Err() == nil {
		err = why
	}
	l.end()
	if conn != nil {
		_ = conn.Close() // the error before it says more
	}
	return err
}

// end ends the context.
func (l *leash) end() {
	l.limit(0, "")
	l.free()
	l.cancel(context.Canceled)
}
