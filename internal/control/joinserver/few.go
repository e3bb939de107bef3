// SPDX-License-Identifier: Apache-2.0

package joinserver

import (
	"sync"
	"time"
)

// Nodes are known and not limited as strangers are. A stolen one must not be able to keep a control plane busy all the same.
const (
	maxStreams   = 8               // of one node at once: it needs one, and those of its past die within half a minute
	renewBurst   = 16              // renewals of one stream at once
	renewAgainIn = 2 * time.Second // and in the long run
)

// streams counts the streams of each node.
type streams struct {
	mu    sync.Mutex // guards the field below
	nodes map[string]int
}

func newStreams() *streams { return &streams{nodes: map[string]int{}} }

// begin reports false when the node has too many; otherwise end must follow.
func (s *streams) begin(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes[key] >= maxStreams {
		return false
	}
	s.nodes[key]++
	return true
}

func (s *streams) end(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes[key]--; s.nodes[key] == 0 {
		delete(s.nodes, key)
	}
}

// pace lets renewBurst through at once, and one each renewAgainIn. The zero value is full.
type pace struct{ free time.Time }

func (p *pace) take(now time.Time) bool {
	if begin := now.Add(-(renewBurst - 1) * renewAgainIn); p.free.Before(begin) {
		p.free = begin
	}
	if p.free.After(now) {
		return false
	}
	p.free = p.free.Add(renewAgainIn)
	return true
}
