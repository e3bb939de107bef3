// SPDX-License-Identifier: Apache-2.0

package units

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/core/plan"
)

// Input is an entry whose change restarts the unit, and its fingerprint when the process was started.
type Input struct {
	Entry plan.Entry `json:"entry"`
	Sum   string     `json:"sum"`
}

// StartPart is the part of a unit that only a restart changes. How it is asked or stopped is not.
func StartPart(u plan.Unit) plan.Unit {
	return plan.Unit{Name: u.Name, Args: u.Args, Env: u.Env, Dir: u.Dir, Oneshot: u.Oneshot, OOMScore: u.OOMScore}
}

// Begun is how a process was started.
type Begun struct {
	Unit   plan.Unit
	Inputs []Input
	At     time.Time // when, at the latest before it could read anything; zero: nobody knows
}

// Differs tells in words why a process that was begun so is not what is wanted; empty when it is.
//
// An input that the record has never heard of, because an earlier version of Slipway did not count it as one, is no change if it
// lies as it did when the process was started: then the process has read what is there now. [Begun.Adopt] adds it to the record.
func (b Begun) Differs(spec plan.Unit, inputs []Input) string {
	var why []string
	for what, same := range map[string]bool{
		"its arguments":   slices.Equal(b.Unit.Args, spec.Args),
		"its environment": slices.Equal(b.Unit.Env, spec.Env),
		"its folder":      b.Unit.Dir == spec.Dir,
		"its OOM score":   b.Unit.OOMScore == spec.OOMScore,
		"its kind":        b.Unit.Oneshot == spec.Oneshot,
	} {
		if !same {
			why = append(why, what)
		}
	}
	before := b.sums()
	for _, in := range inputs {
		if sum, ok := before[in.Entry.Ref]; ok && sum != in.Sum || !ok && !liesSince(in.Entry.Item, b.At) {
			why = append(why, in.Entry.Ref.String())
		}
	}
	if len(why) == 0 {
		return ""
	}
	slices.Sort(why)
	return strings.Join(why, ", ") + " changed"
}

// Adopt returns what is to be recorded of a process that does not differ: what it was started with, and with it the inputs of now
// that were not known then. adopted tells that there are such.
func (b Begun) Adopt(inputs []Input) (_ []Input, adopted bool) {
	before, all := b.sums(), slices.Clip(b.Inputs)
	for _, in := range inputs {
		if _, ok := before[in.Entry.Ref]; !ok {
			all = append(all, in)
		}
	}
	return all, len(all) > len(b.Inputs)
}

func (b Begun) sums() map[plan.Ref]string {
	sums := map[plan.Ref]string{}
	for _, in := range b.Inputs {
		sums[in.Entry.Ref] = in.Sum
	}
	return sums
}

// Seen remembers the entries of plans: a unit names its inputs, and is not told what they are. The zero value is ready to use.
type Seen struct {
	mu      sync.Mutex // guards the fields below
	entries map[plan.Ref]plan.Entry
}

// See remembers an entry, in place of what was seen of it before.
func (s *Seen) See(e plan.Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.entries == nil {
		s.entries = map[plan.Ref]plan.Entry{}
	}
	s.entries[e.Ref] = e
}

// Recall remembers what an earlier agent has seen, unless something newer is known.
func (s *Seen) Recall(inputs []Input) {
	for _, in := range inputs {
		if _, ok := s.Find(in.Entry.Ref); !ok {
			s.See(in.Entry)
		}
	}
}

// Find returns what was seen last.
func (s *Seen) Find(r plan.Ref) (plan.Entry, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.entries[r]
	return e, ok
}

// Fingerprints looks at what the unit's inputs hold now. An input that is a unit itself holds nothing.
func (s *Seen) Fingerprints(spec plan.Unit, fingerprint func(plan.Item) (string, error)) ([]Input, error) {
	var inputs []Input
	for _, ref := range spec.Inputs {
		e, ok := s.Find(ref)
		if !ok {
			return nil, fmt.Errorf("input %s has not been seen yet", ref)
		}
		sum := ""
		if _, isUnit := e.Item.(plan.Unit); !isUnit {
			var err error
			if sum, err = fingerprint(e.Item); err != nil {
				return nil, fmt.Errorf("input %s: %w", ref, err)
			}
		}
		inputs = append(inputs, Input{plan.Entry{Ref: ref, Item: e.Item}, sum})
	}
	return inputs, nil
}
