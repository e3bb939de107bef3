// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/slipway-project/slipway/internal/sleep"
)

const (
	firstPause = 50 * time.Millisecond
	startPause = 150 * time.Millisecond
	startTime  = 15 * time.Second
	lastPause  = 2 * time.Second

	// settle is how long a server may refuse what it would accept in a moment: RBAC's first roles, a namespace, a kind whose
	// definition comes from another add-on.
	settle = time.Minute
	// believe is how long a request may be called wrong before that is believed.
	believe = 3 * time.Second
)

// backoff paces tries of one thing. The zero value is ready.
type backoff struct {
	next  time.Duration
	begun time.Time
}

// pause waits a little longer each time, and returns the context's error when that ends first.
func (b *backoff) pause(ctx context.Context) error {
	if b.next == 0 {
		b.next, b.begun = firstPause, time.Now()
	}
	d := b.next/2 + rand.N(b.next) // jitter: agents of many machines must not knock together
	b.next = min(b.next*8/5, b.longest())
	return sleep.For(ctx, d)
}

// longest keeps the pauses short while a server is likely to be starting, which is when somebody waits.
func (b *backoff) longest() time.Duration {
	if time.Since(b.begun) < startTime {
		return startPause
	}
	return lastPause
}

func (b *backoff) reset() { b.next = 0 }

// class says what an error means for trying again.
type class int

const (
	away     class = iota // the server does not answer, or has trouble of its own
	refused               // it will not, now
	rejected              // the request itself is wrong
)

func classify(err error) class {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return away
	}
	switch code := status.Status().Code; {
	case code == 400 || code == 405 || code == 406 || code == 413 || code == 415 || code == 422:
		return rejected
	case code == 429 || code >= 500 || code == 0:
		return away
	}
	return refused
}

// patience tells when trying again is pointless.
type patience struct {
	class class
	since time.Time
}

// out takes each error in turn. ready is asked before a rejection is believed: a server that is just starting rejects what is
// right, such as a Service address while it does not know its own range yet.
func (p *patience) out(err error, ready func() bool) bool {
	if c := classify(err); c != p.class || p.since.IsZero() {
		p.class, p.since = c, time.Now()
	}
	switch p.class {
	case refused:
		return time.Since(p.since) > settle
	case rejected:
		return time.Since(p.since) > believe && ready()
	case away:
	}
	return false
}

// try calls do until it succeeds, trying again is pointless, or ctx ends; waiting is told each error in between.
func (c *Client) try(ctx context.Context, waiting func(reason string), do func() error) error {
	var pace backoff
	var patient patience
	for {
		err := do()
		if err == nil || patient.out(err, func() bool { return c.Unready(ctx) == "" }) {
			return err
		}
		if ctx.Err() != nil {
			return ended(ctx, reason(err))
		}
		waiting(reason(err))
		if pace.pause(ctx) != nil {
			return ended(ctx, reason(err))
		}
	}
}

// ended is the context's error with what was waited for last.
func ended(ctx context.Context, last string) error {
	if last == "" {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%w, last: %s", context.Cause(ctx), last)
}

// Unanswered tells that an error is no answer: the API server is away, or in trouble of its own.
func Unanswered(err error) bool {
	var status apierrors.APIStatus
	var wire net.Error // *url.Error is one
	return (errors.As(err, &status) || errors.As(err, &wire)) && classify(err) == away
}

// Starting tells that an error may come from a server that has just started: it is away yet, or does not know its own roles yet.
func Starting(err error) bool {
	return Unanswered(err) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)
}

// reason is an error for people: the URL and the client's wrappings are left out.
func reason(err error) string {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Addr != nil {
		return fmt.Sprintf("the API server at %s: %s", op.Addr, op.Err)
	}
	return err.Error()
}

// onChange calls report when the text differs from the last one. Nobody else may call report meanwhile.
func onChange(report func(string)) func(string) {
	last := ""
	return func(text string) {
		if report != nil && text != last {
			last = text
			report(text)
		}
	}
}

// onState is onChange for what has a state from the start: the first text is told whatever it is, the empty one too.
func onState(report func(string)) func(string) {
	last, told := "", false
	return func(text string) {
		if !told || text != last {
			last, told = text, true
			report(text)
		}
	}
}
