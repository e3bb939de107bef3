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

// Input is an entry whose change restarts the unit, with its fingerprint when the process was started.
type Input struct {
	Entry plan.Entry `json:"entry"`
	Sum   string     `json:"sum"`
}

// StartInfo records how a process was started.
type StartInfo struct {
	Unit   plan.Unit
	Inputs []Input
	At     time.Time // a time before the process could read its inputs; zero if unknown
}

// Differs describes how a process started this way differs from what is wanted, or returns "" if it does
// not.
//
// An input that was not recorded, because an earlier version of Slipway did not treat it as one, is no
// difference if its files are unchanged since the start: the process has then read the present content.
// [StartInfo.AddInputs] adds such inputs to the record.
func (s StartInfo) Differs(spec plan.Unit, inputs []Input) string {
	var why []string
	for what, same := range map[string]bool{
		"its arguments":         slices.Equal(s.Unit.Args, spec.Args),
		"its environment":       slices.Equal(s.Unit.Env, spec.Env),
		"its working directory": s.Unit.Dir == spec.Dir,
		"its OOM score":         s.Unit.OOMScore == spec.OOMScore,
		"its kind":              s.Unit.Oneshot == spec.Oneshot,
	} {
		if !same {
			why = append(why, what)
		}
	}
	before := s.sums()
	for _, in := range inputs {
		if sum, ok := before[in.Entry.Ref]; ok && sum != in.Sum || !ok && !unchangedSince(in.Entry.Item, s.At) {
			why = append(why, in.Entry.Ref.String())
		}
	}
	if len(why) == 0 {
		return ""
	}
	slices.Sort(why)
	return strings.Join(why, ", ") + " changed"
}

// AddInputs returns the recorded inputs plus those of inputs that were not recorded at the start, and
// whether there are any. It is for processes that do not differ.
func (s StartInfo) AddInputs(inputs []Input) (_ []Input, added bool) {
	before, all := s.sums(), slices.Clip(s.Inputs)
	for _, in := range inputs {
		if _, ok := before[in.Entry.Ref]; !ok {
			all = append(all, in)
		}
	}
	return all, len(all) > len(s.Inputs)
}

func (s StartInfo) sums() map[plan.Ref]string {
	sums := map[plan.Ref]string{}
	for _, in := range s.Inputs {
		sums[in.Entry.Ref] = in.Sum
	}
	return sums
}

// EntryCache holds the plan entries that a host has seen: a unit only names its inputs, and the cache
// resolves the names. The zero value is ready to use. It is safe for concurrent use.
type EntryCache struct {
	mu      sync.Mutex // guards the fields below
	entries map[plan.Ref]plan.Entry
}

// Add stores an entry and replaces an older version of it.
func (s *EntryCache) Add(e plan.Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.entries == nil {
		s.entries = map[plan.Ref]plan.Entry{}
	}
	s.entries[e.Ref] = e
}

// Restore adds the inputs recorded by an earlier agent, except for entries that are already in the cache.
func (s *EntryCache) Restore(inputs []Input) {
	for _, in := range inputs {
		if _, ok := s.Find(in.Entry.Ref); !ok {
			s.Add(in.Entry)
		}
	}
}

// Find returns the latest version of an entry.
func (s *EntryCache) Find(r plan.Ref) (plan.Entry, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.entries[r]
	return e, ok
}

// Fingerprints returns the unit's inputs with their current fingerprints. An input that is itself a unit
// has an empty fingerprint. It returns an error if an input is not in the cache.
func (s *EntryCache) Fingerprints(spec plan.Unit, fingerprint func(plan.Item) (string, error)) ([]Input, error) {
	var inputs []Input
	for _, ref := range spec.Inputs {
		e, ok := s.Find(ref)
		if !ok {
			return nil, fmt.Errorf("input %s has not been observed yet", ref)
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

// clockSkew is an upper bound for how far the kernel's coarse file timestamps lag behind the system clock.
const clockSkew = 50 * time.Millisecond

// unchangedSince reports whether the files of an item have certainly not changed since at. It uses the
// inode change time (ctime), which renames and copies also set and which cannot be set back. Files that
// cannot be read, and times in the future, count as changed. Only a system clock that was wrong at that
// time and was set back since can make the result wrong.
func unchangedSince(item plan.Item, at time.Time) bool {
	if at.IsZero() || at.After(time.Now()) {
		return false
	}
	_, isLink := item.(plan.Artifact)
	for _, path := range inputFiles(item) {
		info, err := os.Lstat(path)
		if err != nil {
			return false
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok || !info.Mode().IsRegular() && !isLink { // the target of a link has its own ctime
			return false
		}
		if changed := time.Unix(stat.Ctim.Unix()); changed.After(at.Add(-clockSkew)) {
			return false
		}
	}
	return true
}

// inputFiles returns the files that determine an item's fingerprint. Directories, mounts and units have
// none.
func inputFiles(item plan.Item) []string {
	switch it := item.(type) {
	case plan.File:
		return []string{it.Path}
	case plan.Kubeconfig:
		return []string{it.Path}
	case plan.StaticPod:
		return []string{it.Path}
	case plan.Artifact: // a link whose target name is the content's digest
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
	return []string{""} // unknown kind: a file that does not exist
}
