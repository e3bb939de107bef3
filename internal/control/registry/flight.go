// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"fmt"
	"sync"
)

// flight lets those who want to read the nodes at the same time share one read, which begins after all of them have asked: what
// they get is as fresh as if each had asked alone, and a thousand strangers at the door cost the API server no more than one.
type flight struct {
	mu   sync.Mutex // guards the field below
	next *read      // the one that has not begun

	running chan struct{} // holds a value while a read is under way
}

type read struct {
	done chan struct{} // closed when the fields below are set
	book book
	err  error
	left bool // who read went away meanwhile: that says nothing of the records
}

func newFlight() *flight { return &flight{running: make(chan struct{}, 1)} }

// do shares what fetch brings.
func (f *flight) do(ctx context.Context, fetch func(context.Context) (book, error)) (book, error) {
	for {
		r, mine := f.join()
		if mine {
			f.lead(ctx, r, fetch)
		}
		select {
		case <-r.done:
		case <-ctx.Done():
			return book{}, fmt.Errorf("read nodes: %w", context.Cause(ctx))
		}
		if !r.left || mine {
			return r.book, r.err
		}
	}
}

// join finds the read that has not begun, or makes it; mine: the caller has to do it.
func (f *flight) join() (r *read, mine bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.next == nil {
		f.next, mine = &read{done: make(chan struct{})}, true
	}
	return f.next, mine
}

func (f *flight) lead(ctx context.Context, r *read, fetch func(context.Context) (book, error)) {
	defer close(r.done)
	select {
	case f.running <- struct{}{}:
		defer func() { <-f.running }()
	case <-ctx.Done():
	}
	f.mu.Lock()
	f.next = nil // who asks from here on has to get a later read
	f.mu.Unlock()
	r.book, r.err = fetch(ctx)
	r.left = r.err != nil && ctx.Err() != nil
}
