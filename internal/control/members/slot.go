// SPDX-License-Identifier: Apache-2.0

package members

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/slipway-project/slipway/internal/control/lease"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/membership"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/wait"
)

// The slot's record.
const (
	kind = lease.Kind
	name = "etcd"
)

type phase string

const (
	taken    phase = "taken"    // its turn; nothing is done yet, or nobody knows
	added    phase = "added"    // its learner is in the list
	leaving  phase = "leaving"  // the node is being taken out
	clearing phase = "clearing" // what the join began is being taken back: nobody promotes it any more
)

// record is what all control planes know together.
type record struct {
	Holder *holder `json:"holder,omitempty"` // nil: the slot is free
	// Known is the last member that each node was given, in hex. If that one is no member any more, the node's data is worthless.
	Known map[string]string `json:"known,omitempty"`
}

type holder struct {
	Node    string  `json:"node"`
	Key     pin.Pin `json:"key,omitempty"`
	PeerURL string  `json:"peerURL,omitempty"`
	Member  string  `json:"member,omitempty"` // hex
	Discard bool    `json:"discard,omitempty"`
	Phase   phase   `json:"phase"`
	// For people only, and to make each renewal another version: clocks of several machines are not compared.
	Since   time.Time `json:"since"`
	Renewed time.Time `json:"renewed"`
}

func (h *holder) is(node admission.Node) bool {
	return h != nil && h.Node == node.Name && h.Key == node.Key
}

func (h *holder) joins() bool { return h != nil && (h.Phase == taken || h.Phase == added) }

func (h *holder) String() string {
	verb := "joins"
	switch h.Phase {
	case leaving:
		verb = "leaves"
	case clearing:
		verb = "is taken back"
	}
	return fmt.Sprintf("%s, which %s since %s", h.Node, verb, h.Since.UTC().Format(time.TimeOnly))
}

func (h *holder) wait() *wait.For {
	return &wait.For{What: "the etcd slot", Who: h.String(), Since: h.Since}
}

// slot is the record with the version that it was read in.
type slot struct {
	record
	version string
}

// sighting is when this machine first saw the slot's holder where it is.
type sighting struct {
	step   string // node, phase and member: what changes when the holder gets on
	stepAt time.Time
}

func (m *Manager) load(ctx context.Context) (slot, error) {
	var s slot
	var err error
	if s.version, err = m.slot.Load(ctx, &s.record); err != nil {
		return slot{}, err
	}
	if s.Known == nil {
		s.Known = map[string]string{}
	}
	m.sight(s)
	return s, nil
}

// save writes the slot if nobody else has. On any error nobody knows whether it was written, and the caller starts over.
func (m *Manager) save(ctx context.Context, s *slot) error {
	if s.Holder != nil {
		s.Holder.Renewed = m.now()
	}
	version, err := m.slot.Save(ctx, s.version, record{Holder: s.Holder, Known: maps.Clone(s.Known)})
	if err != nil {
		return err
	}
	s.version = version
	m.sight(*s)
	return nil
}

func (m *Manager) sight(s slot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	step := ""
	if h := s.Holder; h != nil {
		step = fmt.Sprint(h.Node, " ", h.Key, " ", h.Phase, " ", h.Member)
	}
	if step != m.seen.step || m.seen.stepAt.IsZero() {
		m.seen.step, m.seen.stepAt = step, m.now()
	}
}

// left is how long the slot still lives without being renewed.
func (m *Manager) left(s slot) time.Duration {
	life := slotTTL
	if s.Holder != nil && s.Holder.Phase == clearing {
		life = clearTTL
	}
	return m.slot.Left(s.version, life)
}

// stuck tells whether the holder gets nowhere.
func (m *Manager) stuck() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now().Sub(m.seen.stepAt) > patience
}

func (s *slot) take(node admission.Node, peerURL string, p phase, now time.Time) {
	s.Holder = &holder{Node: node.Name, Key: node.Key, PeerURL: peerURL, Phase: p, Since: now}
}

// owns tells whether the learner is the holder's: by its id, or by its address while the id was not written down yet.
func (h *holder) owns(l membership.Member) bool {
	return h != nil && l.Learner && (h.Member == membership.Hex(l.ID) || h.PeerURL != "" && h.PeerURL == l.PeerURL)
}
