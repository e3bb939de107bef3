// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// asker asks again and again, and remembers for how long there was no answer.
type asker struct {
	ask func(ctx context.Context) error

	mu      sync.Mutex // guards the fields below
	answers int
	last    time.Time // of the last answer
	gap     time.Duration
	err     error // the last one
}

// patience is how long a client waits for an answer.
const patience = time.Second

func newAsker(ask func(context.Context) error) *asker { return &asker{ask: ask, last: time.Now()} }

// run asks until ctx ends.
func (q *asker) run(ctx context.Context) error {
	return poll(ctx, step, func() bool {
		limited, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		err := q.ask(limited)
		if ctx.Err() == nil { // else the end broke it off
			q.note(err, time.Now())
		}
		return false
	})
}

func (q *asker) note(err error, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.gap = max(q.gap, now.Sub(q.last))
	if err != nil {
		q.err = err
		return
	}
	q.answers++
	q.last = now
}

func (q *asker) answered() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.answers
}

func (q *asker) longest() time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.gap
}

func (q *asker) complaint() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.err
}

// reset begins to count anew.
func (q *asker) reset() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.answers, q.gap, q.err, q.last = 0, 0, nil, time.Now()
}

// anew is the same API over a new connection for each question.
func (a api) anew() api {
	t := a.http.Transport.(*http.Transport).Clone()
	t.DisableKeepAlives, t.ForceAttemptHTTP2, t.TLSNextProto = true, false, map[string]func(string, *tls.Conn) http.RoundTripper{}
	t.TLSClientConfig.NextProtos = []string{"http/1.1"}
	return api{&http.Client{Transport: t}}
}

// expect is an error unless the answer has this status.
func (a api) expect(ctx context.Context, method, path, body string, want int) error {
	switch status, text := a.ask(ctx, method, path, body); status {
	case want:
		return nil
	case 0:
		return fmt.Errorf("no answer: %s", text)
	default:
		return fmt.Errorf("status %d: %.200s", status, text)
	}
}
