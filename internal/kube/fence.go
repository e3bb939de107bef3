// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	gomaps "maps"
	"net/http"
	"sync"
	"time"
)

// ErrFenced means that a write was not sent, because this process may have lost its leadership.
var ErrFenced = errors.New("this machine may not be the leader any more")

// Fence tells until when its holder is certainly the leader. The time counts from before the last renewal was sent, by the
// monotonic clock, so it ends before another candidate can become the leader. This also holds for a process that was stopped and
// continued. The zero value is never held. A Fence is safe for concurrent use.
type Fence struct{ held *held }

// Until returns the time at which the lease expires. ok is true while the lease is certainly held.
func (f Fence) Until() (end time.Time, ok bool) {
	if f.held == nil {
		return time.Time{}, false
	}
	f.held.mu.Lock()
	defer f.held.mu.Unlock()
	return f.held.end, !f.held.over && time.Now().Before(f.held.stop)
}

// held is one term of leadership.
type held struct {
	lease, renew time.Duration

	mu        sync.Mutex // guards the fields below
	stop, end time.Time  // without a renewal: no new writes after stop, and no write may be in flight after end
	over      bool
}

// renewed extends the term. asked is a time before the request was sent.
func (h *held) renewed(asked time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stop, h.end = asked.Add(h.renew), asked.Add(h.lease)
}

// finish ends the term: from now on every write is refused.
func (h *held) finish() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
}

// left returns the time until new writes are refused.
func (h *held) left() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Until(h.stop)
}

// Fenced returns a client that writes only while the fence is held. It checks the fence right before it sends a request, and
// cancels the request when the lease expires. The process may be stopped between the check and the sending, so a write that must
// never happen twice also needs a resource version. Reads are not restricted.
func (c *Client) Fenced(fence Fence) (*Client, error) {
	guarded := &http.Client{Transport: fenced{next: c.http.Transport, fence: fence}, Timeout: c.http.Timeout}
	out, err := newClient(c.conf, guarded, c.log)
	if err != nil {
		return nil, fmt.Errorf("fence client: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	out.kinds = gomaps.Clone(c.kinds)
	return out, nil
}

// fenced is a transport that refuses writes while the fence is not held.
type fenced struct {
	next  http.RoundTripper
	fence Fence
}

var _ http.RoundTripper = fenced{}

// RoundTrip sends reads, and writes while the fence is held.
func (f fenced) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return f.next.RoundTrip(r)
	}
	end, ok := f.fence.Until()
	if !ok {
		if r.Body != nil {
			_ = r.Body.Close() // a RoundTripper must always close it
		}
		return nil, fmt.Errorf("%s %s: %w", r.Method, r.URL.Path, ErrFenced)
	}
	ctx, cancel := context.WithDeadlineCause(r.Context(), end, ErrFenced)
	response, err := f.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		cancel()
		return nil, err
	}
	response.Body = cancelOnClose{response.Body, cancel}
	return response, nil
}

// WrappedRoundTripper lets client-go inspect the transport.
func (f fenced) WrappedRoundTripper() http.RoundTripper { return f.next }

// cancelOnClose releases the deadline of a request when its response has been read.
type cancelOnClose struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (c cancelOnClose) Close() error {
	defer c.cancel()
	return c.ReadCloser.Close()
}
