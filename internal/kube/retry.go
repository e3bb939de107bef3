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
	firstPause    = 50 * time.Millisecond
	maxStartPause = 150 * time.Millisecond // during startTime
	maxPause      = 2 * time.Second
	startTime     = 15 * time.Second

	// refusedLimit is how long a server may refuse what it will soon accept: the roles of RBAC, a namespace, or a kind whose
	// definition comes from another add-on may not exist yet.
	refusedLimit = time.Minute
	// rejectedLimit is how long a server may reject a request as invalid before that is final.
	rejectedLimit = 3 * time.Second
)

// backoff paces the attempts of one operation. The zero value is ready to use.
type backoff struct {
	next  time.Duration
	begun time.Time
}

// pause waits a little longer each time. It returns the context's error if that ends first.
func (b *backoff) pause(ctx context.Context) error {
	if b.next == 0 {
		b.next, b.begun = firstPause, time.Now()
	}
	d := b.next/2 + rand.N(b.next) // jitter: the agents of many machines must not retry at the same time
	limit := maxPause
	if time.Since(b.begun) < startTime {
		limit = maxStartPause // the server is probably starting, and a user is waiting for it
	}
	b.next = min(b.next*8/5, limit)
	return sleep.For(ctx, d)
}

func (b *backoff) reset() { b.next = 0 }

// class says whether an error may go away.
type class int

const (
	unavailable class = iota // the server does not respond, or has an internal problem
	refused                  // the server does not accept the request now
	rejected                 // the request itself is invalid
)

// classify tells errors apart by the status code of the API server. Without a status, the request did not
// reach the server.
func classify(err error) class {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return unavailable
	}
	switch code := status.Status().Code; {
	case code == 400 || code == 405 || code == 406 || code == 413 || code == 415 || code == 422:
		return rejected
	case code == 429 || code >= 500 || code == 0:
		return unavailable
	}
	return refused
}

// patience decides when trying again is pointless.
type patience struct {
	class class
	since time.Time
}

// exhausted takes each error in turn. A rejection is final only if ready returns true: a server that is starting rejects valid
// requests, for example a Service address before it has loaded its own range.
func (p *patience) exhausted(err error, ready func() bool) bool {
	if c := classify(err); c != p.class || p.since.IsZero() {
		p.class, p.since = c, time.Now()
	}
	switch p.class {
	case refused:
		return time.Since(p.since) > refusedLimit
	case rejected:
		return time.Since(p.since) > rejectedLimit && ready()
	case unavailable:
	}
	return false
}

// try calls do until it succeeds, trying again is pointless, or ctx ends. waiting is called with each error in between.
func (c *Client) try(ctx context.Context, waiting func(reason string), do func() error) error {
	var pace backoff
	var p patience
	for {
		err := do()
		if err == nil || p.exhausted(err, func() bool { return c.Unready(ctx) == "" }) {
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

// ended is the context's error with the last reason for waiting.
func ended(ctx context.Context, last string) error {
	if last == "" {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%w, last: %s", context.Cause(ctx), last)
}

// IsStarting reports whether an error may come from an API server that is starting: it does not respond, has an internal problem,
// or has not loaded its roles yet.
func IsStarting(err error) bool {
	var status apierrors.APIStatus
	var wire net.Error // *url.Error is one
	return (errors.As(err, &status) || errors.As(err, &wire)) && classify(err) == unavailable ||
		apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)
}

// reason returns an error as a short text for users, without the URL and what client-go wraps around it.
func reason(err error) string {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Addr != nil {
		return fmt.Sprintf("API server at %s: %s", op.Addr, op.Err)
	}
	return err.Error()
}
