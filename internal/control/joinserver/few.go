// SPDX-License-Identifier: Apache-2.0

package joinserver

import (
	"net/netip"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/core/pin"
)

// Nodes are known and not limited as strangers are. A stolen one must not be able to keep a control plane busy all the same.
const (
	maxStreams   = 8               // of one node at once: it needs one, and those of its past die within half a minute
	renewBurst   = 16              // renewals of one node at once
	renewAgainIn = 2 * time.Second // and in the long run
)

// budgets are what each node has used up. There are no more of them than nodes.
type budgets struct {
	mu    sync.Mutex // guards the field below
	nodes map[pin.Pin]*budget
}

type budget struct {
	streams int
	from    map[netip.Addr]int // of the streams that were let in, by the address that they come from
	next    time.Time          // when a node that has just used up its burst may renew again, less the burst
}

func newBudgets() *budgets { return &budgets{nodes: map[pin.Pin]*budget{}} }

func (b *budgets) ofLocked(key pin.Pin) *budget {
	if b.nodes[key] == nil {
		b.nodes[key] = &budget{from: map[netip.Addr]int{}}
	}
	return b.nodes[key]
}

// begin reports false when the node has too many streams; otherwise end must follow.
func (b *budgets) begin(key pin.Pin) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.ofLocked(key)
	if n.streams >= maxStreams {
		return false
	}
	n.streams++
	return true
}

func (b *budgets) end(key pin.Pin) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.nodes[key].streams--
}

// stay notes where a node's stream comes from, and leave that it has ended.
func (b *budgets) stay(key pin.Pin, from netip.Addr) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ofLocked(key).from[from]++
}

func (b *budgets) leave(key pin.Pin, from netip.Addr) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.ofLocked(key)
	if n.from[from]--; n.from[from] <= 0 {
		delete(n.from, from)
	}
}

// elsewhere tells whether a stream of the node comes from another address.
func (b *budgets) elsewhere(key pin.Pin, here netip.Addr) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for from := range b.ofLocked(key).from {
		if from != here {
			return true
		}
	}
	return false
}

// renew lets renewBurst through at once, and one each renewAgainIn, however many streams they come on.
func (b *budgets) renew(key pin.Pin, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.ofLocked(key)
	if full := now.Add(-(renewBurst - 1) * renewAgainIn); n.next.Before(full) {
		n.next = full
	}
	if n.next.After(now) {
		return false
	}
	n.next = n.next.Add(renewAgainIn)
	return true
}
