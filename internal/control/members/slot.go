// SPDX-License-Identifier: Apache-2.0

package members

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/membership"
)

// The slot's record.
const (
	kind = "slot"
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
	Node    string `json:"node"`
	Key     string `json:"key,omitempty"`
	PeerURL string `json:"peerURL,omitempty"`
	Member  string `json:"member,omitempty"` // hex
	Anew    bool   `json:"anew,omitempty"`
	Phase   phase  `json:"phase"`
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

func (h *holder) wait() *Wait {
	return &Wait{For: "the etcd slot", Provider: h.String(), Since: h.Since}
}

// slot is the record with the version that it was read in.
type slot struct {
	record
	version string
}

// sighting is when this machine first saw the slot as it is.
type sighting struct {
	version string
	at      time.Time
	step    string // node, phase and member: what changes when the holder gets on
	stepAt  time.Time
}

// errLost says that somebody else wrote first.
var errLost = errors.New("somebody else was first")

func (m *Manager) load(ctx context.Context) (slot, error) {
	var s slot
	version, err := m.records.Load(ctx, kind, name, &s.record)
	if err != nil && !errors.Is(err, registry.ErrNotFound) {
		return slot{}, fmt.Errorf("read the etcd slot: %w", err)
	}
	s.version = version
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
	value := record{Holder: s.Holder, Known: maps.Clone(s.Known)}
	version, err := m.records.Save(ctx, kind, name, s.version, value)
	switch {
	case errors.Is(err, registry.ErrConflict), errors.Is(err, registry.ErrExists), errors.Is(err, registry.ErrNotFound):
		return fmt.Errorf("write the etcd slot: %w: %w", errLost, err)
	case err != nil:
		return fmt.Errorf("write the etcd slot: %w", err)
	}
	s.version = version
	m.sight(*s)
	return nil
}

func (m *Manager) sight(s slot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	if s.version != m.seen.version || m.seen.at.IsZero() {
		m.seen.version, m.seen.at = s.version, now
	}
	step := ""
	if h := s.Holder; h != nil {
		step = fmt.Sprint(h.Node, " ", h.Key, " ", h.Phase, " ", h.Member)
	}
	if step != m.seen.step || m.seen.stepAt.IsZero() {
		m.seen.step, m.seen.stepAt = step, now
	}
}

// left is how long the slot still lives without being renewed, as far as this machine can tell; it is never less than what
// another machine thinks by more than the way of one write.
func (m *Manager) left(s slot) time.Duration {
	life := slotTTL
	if s.Holder != nil && s.Holder.Phase == clearing {
		life = clearTTL
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.seen.version != s.version {
		return life
	}
	return life - m.now().Sub(m.seen.at)
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
