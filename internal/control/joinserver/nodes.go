// SPDX-License-Identifier: Apache-2.0

package joinserver

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/broadcast"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/pin"
)

// nodeList is the newest known list of records. With it, a change costs one question to the store instead of one for each stream.
type nodeList struct {
	changed broadcast.Signal // Wait must be called before the list is read

	mu        sync.Mutex // guards the fields below
	known     bool       // false before the first list
	keys      map[pin.Pin]admission.Node
	addresses map[netip.Addr]admission.Node
}

func (l *nodeList) set(nodes []admission.Node) {
	keys := make(map[pin.Pin]admission.Node, len(nodes))
	addresses := make(map[netip.Addr]admission.Node, len(nodes))
	for _, n := range nodes {
		if n.Key != "" {
			keys[n.Key] = n
		}
		if n.Address.IsValid() {
			addresses[n.Address] = n
		}
	}
	l.mu.Lock()
	l.known, l.keys, l.addresses = true, keys, addresses
	l.mu.Unlock()
	l.changed.Notify()
}

// byKey returns the record of a key in the list. known is false before the first list.
func (l *nodeList) byKey(key pin.Pin) (n admission.Node, found, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, found = l.keys[key]
	return n, found, l.known
}

// byAddress returns the record of an address in the list.
func (l *nodeList) byAddress(a netip.Addr) (n admission.Node, found bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, found = l.addresses[a]
	return n, found
}

// isRemoved reports whether the list has no record with the key, or one that is being removed. It is false without a list.
func (l *nodeList) isRemoved(key pin.Pin) bool {
	n, found, known := l.byKey(key)
	return known && (!found || n.Removing)
}

// retryRecords is how long to wait after the records did not answer.
const retryRecords = time.Second

// Run keeps the list of nodes current until the context ends, and with it ends the streams of removed nodes. Call it once.
func (s *Server) Run(ctx context.Context) error {
	changes := make(chan struct{}, 1)
	watched := make(chan error, 1)
	go func() {
		watched <- s.Records.Watch(ctx, func() {
			select {
			case changes <- struct{}{}:
			default:
			}
		})
	}()
	var retry <-chan time.Time
	for {
		select {
		case <-changes:
		case <-retry:
		case err := <-watched:
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("watch records: %w", errors.Join(err, errors.New("the watch has ended")))
		}
		retry = nil
		nodes, err := s.Records.Nodes(ctx)
		switch {
		case err == nil:
			s.nodes.set(nodes)
		case ctx.Err() == nil:
			s.Log.Warn("records do not answer", "error", err)
			retry = time.After(retryRecords)
		}
	}
}

// isElsewhere reports whether the peer has another address than its record. Before the machine has joined, the record's address does
// not count.
func (e *session) isElsewhere(n admission.Node) bool {
	return !n.JoinedAt.IsZero() && n.Address.IsValid() && n.Address != e.address()
}

// silentAddress returns the record's address if the peer is a worker that has another one, no stream of the node comes from any other
// address than the peer's, and Kubernetes has received no recent heartbeat. Otherwise it returns the zero address.
func (e *session) silentAddress(ctx context.Context, n admission.Node) (netip.Addr, error) {
	if !e.isElsewhere(n) || e.ControlPlane(n.Pool) || e.limits.hasStreamElsewhere(n.Key, e.address()) {
		return netip.Addr{}, nil
	}
	recent, err := e.Heartbeat(ctx, n.Name)
	switch {
	case err != nil:
		return netip.Addr{}, fmt.Errorf("ask for the heartbeat of node %s at %s: %w", n.Name, n.Address, err)
	case recent:
		return netip.Addr{}, nil
	}
	return n.Address, nil
}

// Limits for one node. Unauthenticated clients have stricter ones, but a stolen node must not overload a control plane either.
const (
	maxStreams   = 8               // a node needs one; earlier ones end within half a minute
	renewBurst   = 16              // renewals at once
	renewAgainIn = 2 * time.Second // the interval of renewals after a burst
)

// nodeLimits counts what each node uses. It has at most one entry for each node.
type nodeLimits struct {
	mu    sync.Mutex // guards the field below
	nodes map[pin.Pin]*usage
}

type usage struct {
	streams int
	from    map[netip.Addr]int // how many streams with a known node come from each address
	next    time.Time          // when the next renewal is due, if the node renewed at the allowed rate
}

func (l *nodeLimits) ofLocked(key pin.Pin) *usage {
	if l.nodes[key] == nil {
		l.nodes[key] = &usage{from: map[netip.Addr]int{}}
	}
	return l.nodes[key]
}

// openStream returns false if the node has too many streams. Otherwise closeStream must follow.
func (l *nodeLimits) openStream(key pin.Pin) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.ofLocked(key)
	if n.streams >= maxStreams {
		return false
	}
	n.streams++
	return true
}

func (l *nodeLimits) closeStream(key pin.Pin) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.nodes[key].streams--
}

// addAddress notes the address of a node's stream. removeAddress must follow.
func (l *nodeLimits) addAddress(key pin.Pin, from netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ofLocked(key).from[from]++
}

func (l *nodeLimits) removeAddress(key pin.Pin, from netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.ofLocked(key)
	if n.from[from]--; n.from[from] <= 0 {
		delete(n.from, from)
	}
}

// hasStreamElsewhere reports whether a stream of the node comes from another address than here.
func (l *nodeLimits) hasStreamElsewhere(key pin.Pin, here netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for from := range l.ofLocked(key).from {
		if from != here {
			return true
		}
	}
	return false
}

// allowRenewal allows renewBurst renewals at once and then one every renewAgainIn, over all streams of the node.
func (l *nodeLimits) allowRenewal(key pin.Pin, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.ofLocked(key)
	if full := now.Add(-(renewBurst - 1) * renewAgainIn); n.next.Before(full) {
		n.next = full
	}
	if n.next.After(now) {
		return false
	}
	n.next = n.next.Add(renewAgainIn)
	return true
}
