// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/slipway-project/slipway/internal/artifact"
	"github.com/slipway-project/slipway/internal/launch"
	"github.com/slipway-project/slipway/internal/trace"
)

// Run is what one boot gave. All times are seconds, milestones since the start of the command.
type Run struct {
	APIReady   float64 `json:"apiReady"`   // /readyz says ok
	NodeReady  float64 `json:"nodeReady"`  // the Node's condition
	Admitted   float64 `json:"admitted"`   // the first pod was accepted: its ServiceAccount is there
	PodRunning float64 `json:"podRunning"` // the first pod's phase
	DNS        float64 `json:"dns"`        // a second pod has an answer from the cluster DNS
	Up         float64 `json:"up"`         // the command has ended
	SecondUp   float64 `json:"secondUp"`   // duration
	Down       float64 `json:"down"`       // duration

	CPU      float64            `json:"cpu"` // all processes of the machine and slipway up, until DNS
	CPUBy    map[string]float64 `json:"cpuBy"`
	Imported float64            `json:"imported"` // CPU of importing the benchmark's own image; in CPU too
	Foreign  float64            `json:"foreign"`  // CPU seconds that others took meanwhile
	Path     []trace.Segment    `json:"path"`
}

// Report is everything that one call of bench has measured.
type Report struct {
	Host Host  `json:"host"`
	Runs []Run `json:"runs"`
	Idle *Idle `json:"idle,omitempty"`

	Forms   []Form   `json:"forms,omitempty"`
	Apply   *Apply   `json:"apply,omitempty"`
	Several *Several `json:"several,omitempty"`

	Spec  float64 `json:"spec"` // seconds for a spec of 1 000 machines
	Size  int64   `json:"size"` // bytes of the executable
	Notes []string
}

type bench struct {
	options
	launcher *launch.Launcher

	place  place
	image  string // digest of the test image's archive
	runc   string
	report Report
}

// prepare finds everything that is needed and refuses to touch a cluster that it has not made.
func (b *bench) prepare(ctx context.Context) error {
	cluster, err := b.launcher.Load(launch.Source{Name: b.cluster, File: b.spec})
	if err != nil {
		return err
	}
	b.cluster = cluster.Name
	known, err := b.launcher.Clusters()
	if err != nil {
		return err
	}
	if slices.Contains(known, b.cluster) {
		return fmt.Errorf("cluster %s exists already: choose another -name, or remove it with slipway down --name %s", b.cluster, b.cluster)
	}
	if len(known) > 0 {
		b.note("clusters %v exist on this host too", known)
	}
	if b.place, err = placeOf(b.launcher, cluster); err != nil {
		return err
	}
	store, err := b.launcher.Store()
	if err != nil {
		return err
	}
	bundle, ok, err := artifact.Lookup(ctx, store, cluster.Release)
	if err != nil || !ok {
		return errors.Join(errors.New("components are not all in the store: run slipway bundle build"), err)
	}
	b.image = bundle.Images[testImage].Digest.Hex()
	b.runc = store.Path(bundle.Binaries["runc"].Digest)
	info, err := os.Stat(b.slipway)
	if err != nil {
		return fmt.Errorf("measure slipway: %w", err)
	}
	b.report.Size = info.Size()
	return nil
}

// all measures everything that is wanted, into the report. Whatever happens, no cluster stays.
func (b *bench) all(ctx context.Context) (err error) {
	defer func() {
		if b.keep {
			return
		}
		err = errors.Join(err, b.command(context.WithoutCancel(ctx), "down", "--name", b.cluster).err)
	}()
	if b.report.Host, err = b.host(ctx); err != nil {
		return err
	}
	if b.only == "" {
		if b.report.Spec, err = thousand(); err != nil {
			return err
		}
	}
	if err := b.measureRuns(ctx); err != nil {
		return err
	}
	if b.keep && b.runs > 0 {
		b.note("what comes after the boots of one machine is left out, for the last cluster is kept")
		return nil
	}
	for _, measure := range []func(context.Context) error{b.measureForms, b.measureApply, b.measureSeveral} {
		if err := measure(ctx); err != nil {
			return err
		}
	}
	return nil
}

// some reports whether anything was measured that is worth showing.
func (r Report) some() bool {
	return len(r.Runs) > 0 || rounds(r.Forms) > 0 || r.Apply != nil && len(r.Apply.Cold) > 0 || r.Several != nil
}

// measureRuns boots one machine as often as wanted. The last cluster is kept for a while to see what it needs when idle.
func (b *bench) measureRuns(ctx context.Context) error {
	for i := range b.runs {
		if err := b.quiet(ctx, fmt.Sprintf("run %d", i+1)); err != nil {
			return err
		}
		last := i == b.runs-1
		var idle func(context.Context) error
		if last && b.idle > 0 {
			idle = func(ctx context.Context) (err error) {
				b.report.Idle, err = b.rest(ctx)
				return err
			}
		}
		run, err := b.cycle(ctx, last && b.keep, idle)
		if err != nil {
			return fmt.Errorf("run %d: %w", i+1, err)
		}
		b.report.Runs = append(b.report.Runs, run)
		b.say("run %d: API %.2f  node %.2f  pod accepted %.2f  running %.2f  DNS %.2f  up %.2f  again %.2f  down %.2f  CPU %.2f  others' CPU %.2f",
			i+1, run.APIReady, run.NodeReady, run.Admitted, run.PodRunning, run.DNS, run.Up, run.SecondUp, run.Down, run.CPU, run.Foreign)
	}
	return nil
}

func (b *bench) say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func (b *bench) note(format string, args ...any) {
	b.report.Notes = append(b.report.Notes, fmt.Sprintf(format, args...))
	b.say("note: "+format, args...)
}

func (r Report) save(path string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode report: %w", err)
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}
