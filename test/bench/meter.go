// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"maps"
	"sync"
	"time"
)

// unnamed is the row of what runs in the machine and is no unit and no pod.
const unnamed = "agent, init, exec"

// meter reads the machine's CPU time again and again: which moment matters is known only later.
type meter struct {
	cgroup cgroup

	mu      sync.Mutex // guards the fields below
	samples []sample
}

type sample struct {
	at    time.Time
	total float64
	by    map[string]float64
}

func newMeter(c cgroup) *meter { return &meter{cgroup: c} }

// run samples until ctx ends.
func (m *meter) run(ctx context.Context) {
	_ = poll(ctx, step, func() bool { // ends with ctx only
		if s, ok := m.cgroup.sample(m.last()); ok {
			m.mu.Lock()
			m.samples = append(m.samples, s)
			m.mu.Unlock()
		}
		return false
	})
}

func (m *meter) last() map[string]float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.samples) == 0 {
		return nil
	}
	return m.samples[len(m.samples)-1].by
}

// sample keeps the last value of units that are gone.
func (c cgroup) sample(before map[string]float64) (sample, bool) {
	s := sample{at: time.Now(), by: map[string]float64{}}
	maps.Copy(s.by, before)
	delete(s.by, unnamed)
	var err error
	if s.total, err = c.cpu(); err != nil {
		return s, false // no machine yet
	}
	for name, unit := range c.units() {
		if seconds, err := unit.cpu(); err == nil {
			s.by[name] = seconds
		}
	}
	left := s.total
	for _, seconds := range s.by {
		left -= seconds
	}
	s.by[unnamed] = max(0, left)
	return s, true
}

// until is the first sample at or after a moment, or else the last.
func (m *meter) until(at time.Time) (total float64, by map[string]float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, s := range m.samples {
		if !s.at.Before(at) || i == len(m.samples)-1 {
			return s.total, maps.Clone(s.by)
		}
	}
	return 0, map[string]float64{}
}
