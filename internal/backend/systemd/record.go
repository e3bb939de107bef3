// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/slipway-project/slipway/internal/backend/units"
	"github.com/slipway-project/slipway/internal/core/plan"
)

const recordSchema = 1

// record is what the agent has decided about a unit and learned of it. The unit's own start reads it, see Begin; a later
// agent goes on from it.
type record struct {
	Unit     plan.Unit     `json:"unit"`
	Inputs   []units.Input `json:"inputs,omitempty"` // as they were when it was written
	Life     string        `json:"life,omitempty"`   // invocation that the next three are about
	Ready    bool          `json:"ready"`
	Unwell   time.Time     `json:"unwell,omitzero"` // since when it was ready once and does not answer any more
	Ran      bool          `json:"ran,omitempty"`   // a oneshot has ended well
	Stopped  bool          `json:"stopped,omitempty"`
	Restarts int           `json:"restarts"`
	LastExit *units.Exit   `json:"lastExit,omitempty"`
}

// isWhole: it says what the unit is. One that does not is about a process that was found running.
func (r record) isWhole() bool { return len(r.Unit.Args) > 0 }

// begun is what Begin notes of a start.
type begun struct {
	Invocation string        `json:"invocation"`
	At         time.Time     `json:"at"`
	Inputs     []units.Input `json:"inputs,omitempty"` // what the process is going to read
	Deaths     int           `json:"deaths"`           // in a row, before this start
	Refused    string        `json:"refused,omitempty"`
}

// begun is how the process was started: by what Begin has noted, and, of what it did not know yet, by what was recorded since.
func (r record) begun(b begun) units.Begun {
	since, _ := units.Begun{Inputs: b.Inputs}.Adopt(r.Inputs)
	return units.Begun{Unit: r.Unit, Inputs: since, At: b.At}
}

func recordPath(dir, unit string) string { return filepath.Join(dir, unit+".state") }
func begunPath(dir, unit string) string  { return filepath.Join(dir, unit+".begun") }

// removeRecord removes a record with the generation before it.
func removeRecord(path string) error {
	var errs []error
	for _, p := range []string{path, path + ".prev"} {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
