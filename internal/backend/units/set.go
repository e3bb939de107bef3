// SPDX-License-Identifier: Apache-2.0

package units

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
)

// Set is the units that a host knows, by name. The zero value is ready.
type Set[U comparable] struct {
	mu    sync.Mutex // guards the field below
	units map[string]U
}

// Get is the zero U for a unit that nobody has asked for yet.
func (s *Set[U]) Get(name string) U {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.units[name]
}

// GetOrNew makes a unit that is not known; made must not ask the set.
func (s *Set[U]) GetOrNew(name string, made func() U) U {
	s.mu.Lock()
	defer s.mu.Unlock()
	u, ok := s.units[name]
	if !ok {
		u = made()
		s.putLocked(name, u)
	}
	return u
}

// Put adds a unit.
func (s *Set[U]) Put(name string, u U) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.putLocked(name, u)
}

func (s *Set[U]) putLocked(name string, u U) {
	if s.units == nil {
		s.units = map[string]U{}
	}
	s.units[name] = u
}

// Forget takes a unit out, unless another one has its name by now.
func (s *Set[U]) Forget(name string, u U) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.units[name] == u {
		delete(s.units, name)
	}
}

// Names lists the units, sorted.
func (s *Set[U]) Names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.units))
}

// All lists the units by name.
func (s *Set[U]) All() []U {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []U
	for _, name := range slices.Sorted(maps.Keys(s.units)) {
		all = append(all, s.units[name])
	}
	return all
}

// StopAll stops the named units one after the other, then all others. It goes on when one does not stop. A name of nobody is no error.
func (s *Set[U]) StopAll(ctx context.Context, order []string, stop func(u U, ctx context.Context) error) error {
	for _, name := range s.Names() {
		if !slices.Contains(order, name) {
			order = append(slices.Clip(order), name)
		}
	}
	var errs []error
	for _, name := range order {
		errs = append(errs, s.Stop(ctx, name, stop))
	}
	return errors.Join(errs...)
}

// Stop stops one unit. One that does not run, or that this machine never had, is no error.
func (s *Set[U]) Stop(ctx context.Context, name string, stop func(u U, ctx context.Context) error) error {
	var nobody U
	if u := s.Get(name); u != nobody {
		return stop(u, ctx)
	}
	return nil
}
