// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/slipway-project/slipway/internal/core/placement"
	"github.com/slipway-project/slipway/internal/core/spec"
	xfleet "github.com/slipway-project/slipway/internal/render/fleet"
)

// Imported is a spec made of units of another program.
type Imported struct {
	Spec  []byte
	Notes []string // what the units do without from now on
}

// importedUnit has the fields of a spec's unit in the order in which people write them.
type importedUnit struct {
	Name        string              `yaml:"name"`
	Exec        []string            `yaml:"exec"`
	Env         map[string]string   `yaml:"env,omitempty"`
	Directory   string              `yaml:"directory,omitempty"`
	Ready       map[string]any      `yaml:"ready,omitempty"`
	Facts       []string            `yaml:"facts,omitempty,flow"`
	StopTimeout string              `yaml:"stopTimeout,omitempty"`
	On          map[string][]string `yaml:"on,omitempty"`
	With        []string            `yaml:"with,omitempty,flow"`
	Conflicts   []string            `yaml:"conflicts,omitempty,flow"`
	Global      bool                `yaml:"global,omitempty"`
	Pin         string              `yaml:"pin,omitempty"`
	Replaces    []string            `yaml:"replaces,omitempty,flow"`
}

// ImportFleet reads units that were written for fleet. What is wrong in any of them is told at once; a spec that has to be mended
// still comes back, with the problems as an Error of kind InvalidSpec.
func ImportFleet(cluster string, files []string) (Imported, error) {
	var out Imported
	var wrong []error
	var units []importedUnit
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			wrong = append(wrong, fmt.Errorf("read unit: %w", err))
			continue
		}
		u, notes, err := xfleet.Decode(filepath.Clean(file), string(text))
		if err != nil {
			wrong = append(wrong, err)
			continue
		}
		out.Notes = append(out.Notes, notes...)
		units = append(units, imported(u))
	}
	if len(wrong) > 0 {
		return Imported{}, errors.Join(wrong...)
	}
	slices.SortFunc(units, func(a, b importedUnit) int { return strings.Compare(a.Name, b.Name) })
	var b bytes.Buffer
	fmt.Fprintf(&b, "apiVersion: %s\nkind: %s\nmetadata:\n  name: %s\n", spec.APIVersion, spec.Kind, cluster)
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := errors.Join(enc.Encode(map[string]any{"spec": map[string]any{"units": units}}), enc.Close()); err != nil {
		return Imported{}, fmt.Errorf("write spec: %w", err)
	}
	out.Spec = b.Bytes()
	_, err := Complete("the imported spec", out.Spec, "")
	return out, err
}

// imported is the unit as a spec says it. A percent sign is written twice there.
func imported(u xfleet.Unit) importedUnit {
	list := func(in []string) []string {
		out := make([]string, len(in))
		for i, s := range in {
			out[i] = placement.Escape(s)
		}
		return out
	}
	out := importedUnit{
		Name: u.Name, Exec: list(u.Exec), Directory: placement.Escape(u.Dir), Facts: u.Facts, With: list(u.With), Conflicts: list(u.Conflicts),
		Global: u.Global, Pin: placement.Escape(u.Pin), Replaces: list(u.Replaces),
	}
	for _, k := range slices.Sorted(maps.Keys(u.Env)) {
		if out.Env == nil {
			out.Env = map[string]string{}
		}
		out.Env[k] = placement.Escape(u.Env[k])
	}
	for k, values := range u.On {
		if out.On == nil {
			out.On = map[string][]string{}
		}
		out.On[k] = list(values)
	}
	for k, v := range u.Probes {
		if out.Ready == nil {
			out.Ready = map[string]any{}
		}
		out.Ready[k] = placement.Escape(v)
	}
	if u.Notify {
		out.Ready = map[string]any{"notify": true}
	}
	if u.StopTimeout > 0 {
		out.StopTimeout = u.StopTimeout.String()
	}
	return out
}

// FleetUnits are the spec's own units as fleet can have them.
func FleetUnits(c Cluster) []xfleet.Unit {
	var out []xfleet.Unit
	for _, u := range c.Config.Units {
		f := xfleet.Unit{Unit: u.Unit.Unit, Exec: u.Exec, Env: u.Env, Dir: u.Dir, Notify: u.Ready.Notify, Facts: u.Facts, StopTimeout: u.StopTimeout}
		for kind, question := range map[string]string{"http": u.Ready.HTTP, "tcp": u.Ready.TCP, "file": u.Ready.File} {
			if question != "" {
				if f.Probes == nil {
					f.Probes = map[string]string{}
				}
				f.Probes[kind] = question
			}
		}
		out = append(out, f)
	}
	return out
}
