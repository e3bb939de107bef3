// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/slipway-project/slipway/internal/backend/dataguard"
	"github.com/slipway-project/slipway/internal/backend/units"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/sleep"
)

// restartPause is systemd's own pause before it starts again what has died. All that goes beyond it is waited for in Begin.
const restartPause = 100 * time.Millisecond

// Begin is what systemd runs before each start of a unit, as a hidden sub-command: it holds back what dies again and again,
// notes what the process is going to read, and refuses a start over lost data. It does so because systemd starts units also while
// there is no agent, or before the agent has looked. An error is printed by the caller and ends up in the unit's log; systemd
// tries again.
//
// systemd could let the delay grow by itself (RestartSteps=, from 254 on), but forgets a unit's deaths only when somebody stops
// it: what died ten times in a year would be half a minute late for ever.
func Begin(ctx context.Context, args []string, fingerprint func(plan.Item) (string, error)) error {
	flags := flag.NewFlagSet("unit-begin", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	dir := flags.String("state", "", "folder of the units' records")
	name := flags.String("unit", "", "name of the unit in the plan")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("unit-begin: %w", err)
	}
	path := begunPath(*dir, *name)
	b, err := holdBack(ctx, path)
	if err != nil {
		return err
	}
	b.Invocation = os.Getenv("INVOCATION_ID")
	refused := b.prepare(recordPath(*dir, *name), fingerprint)
	if refused != nil {
		b.Refused = refused.Error()
	}
	b.At = time.Now()
	return errors.Join(refused, durable.Save(path, recordSchema, b)) // also what was refused counts
}

// prepare looks whether the unit may be started, and at what it is going to read.
func (b *begun) prepare(path string, fingerprint func(plan.Item) (string, error)) error {
	var r record
	if err := durable.Load(path, recordSchema, &r); err != nil {
		return fmt.Errorf("not started before the agent says anew how: read unit's record: %w", err)
	}
	if !r.isWhole() { // without its Holds it must not be started, and nobody knows whether it had any
		return errors.New("not started before the agent says anew how: its record does not tell what the unit is")
	}
	if err := dataguard.Prepare(r.Unit.DataGuard); err != nil {
		return err
	}
	for _, in := range r.Inputs {
		sum, err := inputSum(in, fingerprint)
		if err != nil {
			return err
		}
		b.Inputs = append(b.Inputs, units.Input{Entry: in.Entry, Sum: sum})
	}
	return nil
}

func inputSum(in units.Input, fingerprint func(plan.Item) (string, error)) (string, error) {
	if _, isUnit := in.Entry.Item.(plan.Unit); isUnit {
		return "", nil
	}
	sum, err := fingerprint(in.Entry.Item)
	if err != nil {
		return "", fmt.Errorf("input %s: %w", in.Entry.Ref, err)
	}
	return sum, nil
}

// holdBack waits longer after each death in a row. The agent removes the note before it starts a unit itself.
func holdBack(ctx context.Context, path string) (begun, error) {
	var last begun
	err := durable.Load(path, recordSchema, &last)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return begun{}, nil
	case err != nil: // it is only a count: better to start once too early than never
		return begun{Deaths: 1}, nil //nolint:nilerr // see above
	}
	deaths := 1
	if time.Since(last.At) < units.SoundAfter {
		deaths = last.Deaths + 1
	}
	if err := sleep.For(ctx, max(0, units.RestartDelay(deaths-1)-restartPause)); err != nil {
		return begun{}, fmt.Errorf("hold back: %w", err)
	}
	return begun{Deaths: deaths}, nil
}

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
