// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/core/plan"
)

const recordSchema = 1

// phase says what was last begun with a unit's process. It is written before the thing is done.
type phase string

const (
	starting phase = "starting" // a process with Token may exist; it is found by its cgroup and environment
	started  phase = "started"  // PID and Start name the process
	exited   phase = "exited"   // it died by itself; to be started again, or a oneshot that has run
	stopping phase = "stopping" // it was told to end
	stopped  phase = "stopped"
)

// record is what a later Host has to know of a unit. It is written on a file system that a boot empties.
type record struct {
	Boot     string    `json:"boot"`
	Unit     plan.Unit `json:"unit"`
	Inputs   []input   `json:"inputs,omitempty"`
	Phase    phase     `json:"phase"`
	Token    string    `json:"token"` // of one start; a process whose token is not the record's must not go on
	PID      int       `json:"pid,omitempty"`
	Start    uint64    `json:"start,omitempty"` // field 22 of /proc/PID/stat: a PID may be used again, both never are
	Since    time.Time `json:"since"`
	StopAt   time.Time `json:"stopAt,omitzero"` // when it was first told to end
	Ready    bool      `json:"ready"`
	Unwell   time.Time `json:"unwell,omitzero"` // since when it was ready once and does not answer any more
	Restarts int       `json:"restarts"`
	LastExit *Exit     `json:"lastExit,omitempty"`
}

// input is an entry whose change restarts the unit, and its fingerprint when the process was started.
type input struct {
	Entry plan.Entry `json:"entry"`
	Sum   string     `json:"sum"`
}

// revision identifies how the process was started: what it is told and what its inputs held.
func (r record) revision() string {
	sum := sha256.New()
	_ = json.NewEncoder(sum).Encode(startPart(r.Unit)) // plain strings and numbers: cannot fail
	for _, in := range r.Inputs {
		fmt.Fprintf(sum, "%s %s\n", in.Entry.Ref, in.Sum)
	}
	return hex.EncodeToString(sum.Sum(nil))[:16]
}

// startPart is the part of a unit that only a restart changes. How it is asked or stopped is not.
func startPart(u plan.Unit) plan.Unit {
	return plan.Unit{Name: u.Name, Args: u.Args, Env: u.Env, Dir: u.Dir, Oneshot: u.Oneshot, OOMScore: u.OOMScore}
}

// differs tells in words why a process with this record is not what is wanted; empty when it is.
func (r record) differs(spec plan.Unit, inputs []input) string {
	var why []string
	for what, same := range map[string]bool{
		"its arguments":   slices.Equal(r.Unit.Args, spec.Args),
		"its environment": slices.Equal(r.Unit.Env, spec.Env),
		"its folder":      r.Unit.Dir == spec.Dir,
		"its OOM score":   r.Unit.OOMScore == spec.OOMScore,
		"its kind":        r.Unit.Oneshot == spec.Oneshot,
	} {
		if !same {
			why = append(why, what)
		}
	}
	before := map[plan.Ref]string{}
	for _, in := range r.Inputs {
		before[in.Entry.Ref] = in.Sum
	}
	for _, in := range inputs {
		if sum, ok := before[in.Entry.Ref]; !ok || sum != in.Sum {
			why = append(why, in.Entry.Ref.String())
		}
	}
	if len(why) == 0 {
		return ""
	}
	slices.Sort(why)
	return strings.Join(why, ", ") + " changed"
}

// fingerprints looks at what the unit's inputs hold now.
func (h *Host) fingerprints(spec plan.Unit) ([]input, error) {
	var inputs []input
	for _, ref := range spec.Inputs {
		h.mu.Lock()
		item, ok := h.seen[ref]
		h.mu.Unlock()
		if !ok {
			return nil, fmt.Errorf("input %s has not been seen yet", ref)
		}
		sum := ""
		if _, isUnit := item.(plan.Unit); !isUnit {
			var err error
			if sum, err = h.conf.Files.Fingerprint(item); err != nil {
				return nil, fmt.Errorf("input %s: %w", ref, err)
			}
		}
		inputs = append(inputs, input{plan.Entry{Ref: ref, Item: item}, sum})
	}
	return inputs, nil
}
