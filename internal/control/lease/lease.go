// SPDX-License-Identifier: Apache-2.0

// Package lease implements a lease among the cluster's records: one holder at a time, which must renew it. A lease that is not
// renewed for its whole life is free. The clocks of two machines are never compared: a lease has expired when this machine has seen
// it unchanged for that long. What the record contains, and what losing the lease means, is up to its users: control/members and
// control/rollout.
//
// Read [Lease].
//
//	l := lease.New(records, "etcd", time.Now)
//	version, err := l.Load(ctx, &record)       // "" if it was never written
//	if l.Left(version, 15*time.Second) <= 0 {  // expired
//		version, err = l.Save(ctx, version, mine) // ErrLost: another machine wrote it first
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

// Kind is the kind of the leases' records.
const Kind = "lease"

// Records are the cluster's records; internal/control/registry implements it, and the errors are the registry's.
type Records interface {
	Load(ctx context.Context, kind, name string, into any) (version string, err error)
	// Save creates the record if version is "". Otherwise it replaces exactly that version.
	Save(ctx context.Context, kind, name, version string, value any) (newVersion string, err error)
}

// ErrLost means that another machine wrote the lease first.
var ErrLost = errors.New("another machine was first")

// Lease is one machine's view of a lease. Safe for concurrent use.
type Lease struct {
	records Records
	name    string
	now     func() time.Time

	mu      sync.Mutex // guards the fields below
	version string     // the last one that this machine has seen
	since   time.Time  // when it saw that version for the first time
}

// New returns a view of the lease with this name. It reads nothing.
func New(records Records, name string, now func() time.Time) *Lease {
	return &Lease{records: records, name: name, now: now}
}

// Load reads the record. A record that was never written has the version "" and leaves into unchanged.
func (l *Lease) Load(ctx context.Context, into any) (version string, err error) {
	version, err = l.records.Load(ctx, Kind, l.name, into)
	if err != nil && !errors.Is(err, registry.ErrNotFound) {
		return "", fmt.Errorf("read the %s lease: %w", l.name, err)
	}
	l.saw(version)
	return version, nil
}

// Save replaces the given version of the record, or creates it if version is "". It fails with ErrLost if another machine was first.
// After any other error it is unknown whether the record was written: read it again.
func (l *Lease) Save(ctx context.Context, version string, value any) (string, error) {
	next, err := l.records.Save(ctx, Kind, l.name, version, value)
	switch {
	case errors.Is(err, registry.ErrConflict), errors.Is(err, registry.ErrExists), errors.Is(err, registry.ErrNotFound):
		return "", fmt.Errorf("write the %s lease: %w: %w", l.name, ErrLost, err)
	case err != nil:
		return "", fmt.Errorf("write the %s lease: %w", l.name, err)
	}
	l.saw(next)
	return next, nil
}

func (l *Lease) saw(version string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if version != l.version || l.since.IsZero() {
		l.version, l.since = version, l.now()
	}
}

// Left returns the time until the lease expires, if it is not renewed, as far as this machine can tell. It is less than or equal to 0
// once the lease has expired. Other machines come to the same result within the time that one write needs.
func (l *Lease) Left(version string, life time.Duration) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.version != version {
		return life
	}
	return life - l.now().Sub(l.since)
}
