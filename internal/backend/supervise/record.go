// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/slipway-project/slipway/internal/backend/units"
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
	Boot     string        `json:"boot"`
	Unit     plan.Unit     `json:"unit"`
	Inputs   []units.Input `json:"inputs,omitempty"`
	Phase    phase         `json:"phase"`
	Token    string        `json:"token"` // of one start; a process whose token is not the record's must not go on
	PID      int           `json:"pid,omitempty"`
	Start    uint64        `json:"start,omitempty"` // field 22 of /proc/PID/stat: a PID may be used again, both never are
	Since    time.Time     `json:"since"`
	StopAt   time.Time     `json:"stopAt,omitzero"` // when it was first told to end
	Ready    bool          `json:"ready"`
	Unwell   time.Time     `json:"unwell,omitzero"` // since when it was ready once and does not answer any more
	Restarts int           `json:"restarts"`
	LastExit *units.Exit   `json:"lastExit,omitempty"`
}

// revision identifies how the process was started: what it is told and what its inputs held.
func (r record) revision() string {
	sum := sha256.New()
	_ = json.NewEncoder(sum).Encode(units.StartPart(r.Unit)) // plain strings and numbers: cannot fail
	for _, in := range r.Inputs {
		fmt.Fprintf(sum, "%s %s\n", in.Entry.Ref, in.Sum)
	}
	return hex.EncodeToString(sum.Sum(nil))[:16]
}

func (r record) begun() units.Begun { return units.Begun{Unit: r.Unit, Inputs: r.Inputs, At: r.Since} }
