// SPDX-License-Identifier: Apache-2.0

// Package lease is a place among the cluster's records that one at a time holds: whoever does has to write it again and again, and
// when nobody has for the whole of its life, it is free. Clocks of several machines are never compared: a slot has expired when
// this machine has seen it unchanged for so long. What stands in it, and what follows from losing it, is its users' affair
// (control/members, control/turns).
//
// Read [Lease].
//
//	s := lease.New(records, "etcd", time.Now)
//	version, err := s.Load(ctx, &record)       // "" when it was never written
//	if s.Left(version, 15*time.Second) <= 0 {  // its holder is not heard of
//		version, err = s.Save(ctx, version, mine) // ErrLost: somebody else was first
//	}
package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/control/registry"
)

// Kind is the kind of record that slots are.
const Kind = "lease"

// Records are the cluster's (internal/control/registry), with the registry's errors.
type Records interface {
	Load(ctx context.Context, kind, name string, into any) (version string, err error)
	// Save creates with version "", otherwise it replaces only that version.
	Save(ctx context.Context, kind, name, version string, value any) (newVersion string, err error)
}

// ErrLost says that somebody else wrote first.
var ErrLost = errors.New("somebody else was first")

// Lease is one machine's view of a slot. Safe for concurrent use.
type Lease struct {
	records Records
	name    string
	now     func() time.Time

	mu      sync.Mutex // guards the fields below
	version string     // as this machine saw it last, and when it saw that first
	since   time.Time
}

// New only puts together.
func New(records Records, name string, now func() time.Time) *Lease {
	return &Lease{records: records, name: name, now: now}
}

// Load reads what stands in the slot. What was never written is empty, with the version "".
func (s *Lease) Load(ctx context.Context, into any) (version string, err error) {
	version, err = s.records.Load(ctx, Kind, s.name, into)
	if err != nil && !errors.Is(err, registry.ErrNotFound) {
		return "", fmt.Errorf("read the %s slot: %w", s.name, err)
	}
	s.saw(version)
	return version, nil
}

// Save writes the slot if nobody else has (ErrLost). On any other error nobody knows whether it was written: read it again.
func (s *Lease) Save(ctx context.Context, version string, value any) (string, error) {
	next, err := s.records.Save(ctx, Kind, s.name, version, value)
	switch {
	case errors.Is(err, registry.ErrConflict), errors.Is(err, registry.ErrExists), errors.Is(err, registry.ErrNotFound):
		return "", fmt.Errorf("write the %s slot: %w: %w", s.name, ErrLost, err)
	case err != nil:
		return "", fmt.Errorf("write the %s slot: %w", s.name, err)
	}
	s.saw(next)
	return next, nil
}

func (s *Lease) saw(version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if version != s.version || s.since.IsZero() {
		s.version, s.since = version, s.now()
	}
}

// Left is how long the slot still lives without being written, as far as this machine can tell; it is never less than what
// another machine thinks by more than the way of one write.
func (s *Lease) Left(version string, life time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.version != version {
		return life
	}
	return life - s.now().Sub(s.since)
}
