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

// restartPause is systemd's own pause before a restart (RestartSec). Longer delays are spent in PreStart.
const restartPause = 100 * time.Millisecond

// PreStart runs before each start of a unit, as a hidden subcommand called by systemd: it delays the
// restart of a unit that crashes repeatedly, records the inputs that the process is about to read, and
// refuses a start over lost data. This is not done by the agent because systemd also starts units while no
// agent runs. The caller prints the error, which goes to the unit's log, and systemd retries.
//
// systemd could increase the delay itself (RestartSteps=, since version 254), but it resets the count only
// when a unit is stopped: a unit that crashed ten times in a year would always restart half a minute late.
func PreStart(ctx context.Context, args []string, fingerprint func(plan.Item) (string, error)) error {
	flags := flag.NewFlagSet("unit-pre-start", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	dir := flags.String("state", "", "directory of the unit records")
	name := flags.String("unit", "", "name of the unit in the plan")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("unit-pre-start: %w", err)
	}
	path := startNotePath(*dir, *name)
	note, err := delayStart(ctx, path)
	if err != nil {
		return err
	}
	note.Invocation = os.Getenv("INVOCATION_ID")
	refused := note.prepare(recordPath(*dir, *name), fingerprint)
	if refused != nil {
		note.Refused = refused.Error()
	}
	note.At = time.Now()
	return errors.Join(refused, durable.Save(path, recordSchema, note)) // a refused start counts too
}

// prepare checks whether the unit may be started, and records the fingerprints of its inputs.
func (n *startNote) prepare(path string, fingerprint func(plan.Item) (string, error)) error {
	var r record
	if err := durable.Load(path, recordSchema, &r); err != nil {
		return fmt.Errorf("start refused until the agent has written a new record: read unit record: %w", err)
	}
	if !r.isComplete() { // it may have had a data guard, without which it must not be started
		return errors.New("start refused until the agent has written a new record: the record is incomplete")
	}
	if err := dataguard.Prepare(r.Unit.DataGuard); err != nil {
		return err
	}
	for _, in := range r.Inputs {
		sum := ""
		if _, isUnit := in.Entry.Item.(plan.Unit); !isUnit {
			var err error
			if sum, err = fingerprint(in.Entry.Item); err != nil {
				return fmt.Errorf("input %s: %w", in.Entry.Ref, err)
			}
		}
		n.Inputs = append(n.Inputs, units.Input{Entry: in.Entry, Sum: sum})
	}
	return nil
}

// delayStart waits before a restart, longer after each crash in a row. The agent deletes the start note
// before it starts a unit itself, so that such starts are not delayed.
func delayStart(ctx context.Context, path string) (startNote, error) {
	var last startNote
	err := durable.Load(path, recordSchema, &last)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return startNote{}, nil
	case err != nil: // only the crash count is lost
		return startNote{Crashes: 1}, nil //nolint:nilerr // see above
	}
	crashes := 1
	if time.Since(last.At) < units.StableAfter {
		crashes = last.Crashes + 1
	}
	if err := sleep.For(ctx, max(0, units.RestartDelay(crashes-1)-restartPause)); err != nil {
		return startNote{}, fmt.Errorf("delay start: %w", err)
	}
	return startNote{Crashes: crashes}, nil
}

const recordSchema = 1

// record is what the agent knows about a unit. PreStart reads it before each start, and a later agent
// continues with it.
type record struct {
	Unit           plan.Unit     `json:"unit"`
	Inputs         []units.Input `json:"inputs,omitempty"`     // as they were when the record was written
	Invocation     string        `json:"invocation,omitempty"` // the invocation that Ready and UnhealthySince refer to
	Ready          bool          `json:"ready"`
	UnhealthySince time.Time     `json:"unhealthySince,omitzero"` // since when the unit, once ready, fails its health check
	Ran            bool          `json:"ran,omitempty"`           // a oneshot has succeeded
	Restarts       int           `json:"restarts"`
	LastExit       *units.Exit   `json:"lastExit,omitempty"`
}

// isComplete reports whether the record defines the unit. A record of a process that was found running
// does not.
func (r record) isComplete() bool { return len(r.Unit.Args) > 0 }

// startNote is what PreStart records about a start.
type startNote struct {
	Invocation string        `json:"invocation"`
	At         time.Time     `json:"at"`
	Inputs     []units.Input `json:"inputs,omitempty"` // the inputs that the process is about to read
	Crashes    int           `json:"crashes"`          // crashes in a row before this start
	Refused    string        `json:"refused,omitempty"`
}

// startInfo returns how the process was started: with the inputs of the start note, plus those added to
// the record since.
func (r record) startInfo(n startNote) units.StartInfo {
	since, _ := units.StartInfo{Inputs: n.Inputs}.AddInputs(r.Inputs)
	return units.StartInfo{Unit: r.Unit, Inputs: since, At: n.At}
}

func recordPath(dir, unit string) string    { return filepath.Join(dir, unit+".state") }
func startNotePath(dir, unit string) string { return filepath.Join(dir, unit+".start") }

// removeRecord deletes both generations of a record.
func removeRecord(path string) error { return removeFiles(path, path+".prev") }

// removeFiles removes files. It is not an error if they do not exist.
func removeFiles(paths ...string) error {
	var errs []error
	for _, p := range paths {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
