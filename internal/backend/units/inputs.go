// SPDX-License-Identifier: Apache-2.0

package units

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
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

// tick is more than the kernel's clock for files may be behind the other one.
const tick = 50 * time.Millisecond

// liesSince reports whether what a process reads of an item is certain to be what it could read at that time. The kernel's own
// time of the last change (ctime) tells: a rename or a copy sets it too, and nobody sets it back. What cannot be looked at, or
// was begun in the future, is not certain. Only a clock that was wrong then and has been set back since could deceive it.
func liesSince(item plan.Item, at time.Time) bool {
	if at.IsZero() || at.After(time.Now()) {
		return false
	}
	for _, path := range read(item) {
		info, err := os.Lstat(path)
		if err != nil {
			return false
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok || !info.Mode().IsRegular() && !isArtifact(item) { // a link's target has a time of its own
			return false
		}
		if changed := time.Unix(stat.Ctim.Unix()); changed.After(at.Add(-tick)) {
			return false
		}
	}
	return true
}

// read lists the files that make an item's fingerprint. What has none, such as a folder or another unit, is never read at a start.
func read(item plan.Item) []string {
	switch it := item.(type) {
	case plan.File:
		return []string{it.Path}
	case plan.Kubeconfig:
		return []string{it.Path}
	case plan.StaticPod:
		return []string{it.Path}
	case plan.Artifact: // a link whose target is named by its content
		return []string{it.Path}
	case plan.Cert:
		if it.Want.KeyPath == "" {
			return []string{it.Want.CertPath}
		}
		if it.Want.CertPath == "" {
			return []string{it.Want.KeyPath}
		}
		return []string{it.Want.CertPath, it.Want.KeyPath}
	case plan.Dir, plan.Mount, plan.Precondition, plan.Unit:
		return nil
	}
	return []string{""} // unknown: there is no such file
}

func isArtifact(item plan.Item) bool {
	_, ok := item.(plan.Artifact)
	return ok
}
