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

// ErrFenced means that a write was not sent, because it is not certain that this process still leads.
var ErrFenced = errors.New("this machine leads no longer")

// Fence knows for how long its holder leads for certain. It counts from before the last renewal was sent, by the clock that
// nobody sets, so it ends before anybody else may lead, also in a process that was stopped and goes on. The zero value
// holds nothing. Safe for concurrent use.
type Fence struct{ held *held }

// Until is the moment at which the lease ends; ok while it is certain that it is held.
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
	stop, end time.Time  // without a renewal: no new writes after stop, no write under way after end
	over      bool
}

// renewed extends the term; asked is from before the request was sent.
func (h *held) renewed(asked time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stop, h.end = asked.Add(h.renew), asked.Add(h.lease)
}

func (h *held) finish() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
}

// left is how long until no new writes are sent.
func (h *held) left() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Until(h.stop)
}

// Fenced is a client that reads as before and writes only while the fence holds: that is looked at right before a request is
// sent, and a request under way ends with the lease. Nothing is sure between that look and the wire, where the process may be
// stopped too: what must never be written twice needs a resource version besides.
func (c *Client) Fenced(fence Fence) (*Client, error) {
	guarded := &http.Client{Transport: fenced{next: c.http.Transport, fence: fence}, Timeout: c.http.Timeout}
	out, err := newClient(c.conf, guarded, c.log)
	if err != nil {
		return nil, fmt.Errorf("fence the client: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	out.kinds = gomaps.Clone(c.kinds)
	return out, nil
}

type fenced struct {
	next  http.RoundTripper
	fence Fence
}

// RoundTrip sends what may be sent.
func (f fenced) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return f.next.RoundTrip(r)
	}
	end, ok := f.fence.Until()
	if !ok {
		if r.Body != nil {
			_ = r.Body.Close() // a round tripper closes it, whatever happens; there is nothing to flush
		}
		return nil, fmt.Errorf("%s %s: %w", r.Method, r.URL.Path, ErrFenced)
	}
	ctx, cancel := context.WithDeadlineCause(r.Context(), end, ErrFenced)
	answer, err := f.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		cancel()
		return nil, err
	}
	answer.Body = cancelling{answer.Body, cancel}
	return answer, nil
}

// WrappedRoundTripper lets client-go find what it looks for in a transport.
func (f fenced) WrappedRoundTripper() http.RoundTripper { return f.next }

// cancelling frees a request's deadline when its answer has been read.
type cancelling struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (c cancelling) Close() error {
	defer c.cancel()
	return c.ReadCloser.Close()
}

var _ http.RoundTripper = fenced{}
