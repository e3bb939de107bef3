// SPDX-License-Identifier: Apache-2.0

package registrytest

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/core/record"
)

// Memory is a store for tests and simulations, as strict as the real one. Any number of registries may share it. The zero value
// is not ready: see [NewMemory].
type Memory struct {
	mu       sync.Mutex // guards the fields below; never held while sleeping
	items    map[[2]string]registry.Item
	version  uint64
	watchers map[chan struct{}]string // to the kind
	fault    func(Op) Fault
}

// Op is one call of a store, as faults are chosen by it.
type Op struct {
	Verb string // get, list, put, delete
	Kind string
	Name string
}

// Fault is what goes wrong with one call. The zero value is nothing.
type Fault struct {
	Delay time.Duration // before anything else
	Err   error         // nothing happens, and this is the answer
	Lost  error         // it happens, and this is the answer
}

// NewMemory is an empty store.
func NewMemory() *Memory {
	return &Memory{items: map[[2]string]registry.Item{}, watchers: map[chan struct{}]string{}}
}

// SetFault makes later calls fail as the function says; nil ends that. It is called by many goroutines.
func (m *Memory) SetFault(fault func(Op) Fault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = fault
}

// do is one call: the fault, if any, around the work, which holds the lock.
func (m *Memory) do(ctx context.Context, op Op, work func() error) error {
	m.mu.Lock()
	fault := m.fault
	m.mu.Unlock()
	var f Fault
	if fault != nil {
		f = fault(op)
	}
	if f.Delay > 0 {
		timer := time.NewTimer(f.Delay)
		defer timer.Stop()
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%s record %s %s: %w", op.Verb, op.Kind, op.Name, context.Cause(ctx))
	}
	if f.Err != nil {
		return fmt.Errorf("%s record %s %s: %w", op.Verb, op.Kind, op.Name, f.Err)
	}
	m.mu.Lock()
	err := work()
	m.mu.Unlock()
	if f.Lost != nil {
		err = f.Lost
	}
	if err != nil {
		return fmt.Errorf("%s record %s %s: %w", op.Verb, op.Kind, op.Name, err)
	}
	return nil
}

// Get is [registry.Store].
func (m *Memory) Get(ctx context.Context, kind, name string) (out registry.Item, err error) {
	if err := record.CheckName(kind, name); err != nil {
		return registry.Item{}, err
	}
	err = m.do(ctx, Op{"get", kind, name}, func() error {
		item, ok := m.items[[2]string{kind, name}]
		if !ok {
			return registry.ErrNotFound
		}
		out = clone(item)
		return nil
	})
	if err != nil {
		return registry.Item{}, err
	}
	return out, nil
}

// List is [registry.Store].
func (m *Memory) List(ctx context.Context, kind string) (out []registry.Item, err error) {
	if err := record.CheckName(kind, "x"); err != nil {
		return nil, err
	}
	err = m.do(ctx, Op{"list", kind, ""}, func() error {
		for key, item := range m.items {
			if key[0] == kind {
				out = append(out, clone(item))
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(out, func(a, b registry.Item) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// Put is [registry.Store].
func (m *Memory) Put(ctx context.Context, item registry.Item) (out registry.Item, err error) {
	if err := record.CheckName(item.Kind, item.Name); err != nil {
		return registry.Item{}, err
	}
	err = m.do(ctx, Op{"put", item.Kind, item.Name}, func() error {
		old, ok := m.items[[2]string{item.Kind, item.Name}]
		switch {
		case item.Version == "" && ok:
			return registry.ErrExists
		case item.Version != "" && (!ok || old.Version != item.Version):
			return registry.ErrConflict
		}
		out = clone(item)
		m.version++
		out.Version = strconv.FormatUint(m.version, 10)
		m.items[[2]string{item.Kind, item.Name}] = clone(out)
		m.tellLocked(item.Kind)
		return nil
	})
	if err != nil {
		return registry.Item{}, err
	}
	return out, nil
}

// Delete is [registry.Store].
func (m *Memory) Delete(ctx context.Context, kind, name, version string) error {
	if err := record.CheckName(kind, name); err != nil {
		return err
	}
	return m.do(ctx, Op{"delete", kind, name}, func() error {
		old, ok := m.items[[2]string{kind, name}]
		switch {
		case !ok:
			return registry.ErrNotFound
		case version != "" && version != old.Version:
			return registry.ErrConflict
		}
		delete(m.items, [2]string{kind, name})
		m.tellLocked(kind)
		return nil
	})
}

// Watch is [registry.Store].
func (m *Memory) Watch(ctx context.Context, kind string, changed func()) error {
	if err := record.CheckName(kind, "x"); err != nil {
		return err
	}
	signal := make(chan struct{}, 1)
	signal <- struct{}{}
	m.mu.Lock()
	m.watchers[signal] = kind
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.watchers, signal)
	}()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-signal:
			changed()
		}
	}
}

func (m *Memory) tellLocked(kind string) {
	for signal, of := range m.watchers {
		if of != kind {
			continue
		}
		select {
		case signal <- struct{}{}:
		default: // a signal is on its way already, and what it is looked at for is what was written now
		}
	}
}

func clone(i registry.Item) registry.Item {
	i.Data = bytes.Clone(i.Data)
	return i
}
