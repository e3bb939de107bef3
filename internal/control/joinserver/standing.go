// SPDX-License-Identifier: Apache-2.0

package joinserver

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/pin"
)

// standing is the newest known list of records, for the streams of nodes: one question per change, not one per stream.
type standing struct {
	mu      sync.Mutex // guards the fields below
	known   bool       // there has been an answer
	byKey   map[pin.Pin]admission.Node
	places  map[netip.Addr]admission.Node // by address
	changed chan struct{}                 // closed at each new list, then replaced
}

func newStanding() *standing { return &standing{changed: make(chan struct{})} }

func (s *standing) set(nodes []admission.Node) {
	byKey := make(map[pin.Pin]admission.Node, len(nodes))
	places := make(map[netip.Addr]admission.Node, len(nodes))
	for _, n := range nodes {
		if n.Key != "" {
			byKey[n.Key] = n
		}
		if n.Address.IsValid() {
			places[n.Address] = n
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known, s.byKey, s.places = true, byKey, places
	close(s.changed)
	s.changed = make(chan struct{})
}

// next is closed at the next list. It is taken before looking, so that no list is missed.
func (s *standing) next() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// find gives the record of a key as it was known last; known is false before the first list.
func (s *standing) find(key pin.Pin) (n admission.Node, found, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, found = s.byKey[key]
	return n, found, s.known
}

// at gives the record of an address as it was known last.
func (s *standing) at(a netip.Addr) (n admission.Node, found bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, found = s.places[a]
	return n, found
}

// gone tells that the list has no record with the key, or one that is being removed. No list is no reason to end anything.
func (s *standing) gone(key pin.Pin) bool {
	n, found, known := s.find(key)
	return known && (!found || n.Removing)
}

// retryRecords is how soon the records are asked again that did not answer.
const retryRecords = time.Second

// Run keeps the list of records fresh until the context ends: the streams of removed nodes end by it.
func (s *Server) Run(ctx context.Context) error {
	changes := make(chan struct{}, 1)
	watched := make(chan error, 1)
	go func() {
		watched <- s.Records.Watch(ctx, func() {
			select {
			case changes <- struct{}{}:
			default: // one is waiting already
			}
		})
	}()
	var again <-chan time.Time
	for {
		select {
		case <-changes:
		case <-again:
		case err := <-watched:
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("watch records: %w", errors.Join(err, errors.New("the watch has ended")))
		}
		again = nil
		nodes, err := s.Records.Nodes(ctx)
		switch {
		case err == nil:
			s.standing.set(nodes)
		case ctx.Err() == nil:
			s.Log.Warn("records do not answer", "error", err)
			again = time.After(retryRecords)
		}
	}
}
