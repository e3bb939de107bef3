// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/core/placement"
)

// Decode reads a unit that was written for fleet. Notes say what the unit does without from now on, each with its line. An option
// of placement that is not known is an error: without it the unit would run anywhere.
func Decode(file, text string) (u Unit, notes []string, err error) {
	options, err := Parse(file, text)
	if err != nil {
		return Unit{}, nil, err
	}
	d := decoder{file: file}
	d.unit.Name = placement.Bare(path.Base(file))
	if prefix, _, template := placement.Split(d.unit.Name); template {
		return Unit{}, nil, fmt.Errorf("%s: a template does not run by itself: name an instance, %s@NAME.service", file, prefix)
	}
	for _, o := range options {
		switch o.Section {
		case sectionFleet:
			d.place(o)
		case "Service":
			d.service(o)
		case sectionOwn:
			d.own(o)
		case "Unit":
			if o.Name != "Description" && o.Name != "Documentation" {
				d.note(o, "Slipway orders only units that keep company (MachineOf)")
			}
		case "Install":
			d.note(o, "the agent starts what is placed")
		default:
			d.bad(o, "section [%s] is not known here: there are [Unit], [Service], [Install] and [%s]", o.Section, sectionFleet)
		}
	}
	d.finish()
	return d.unit, d.notes, errors.Join(d.wrong...)
}

type decoder struct {
	file  string
	unit  Unit
	notes []string
	wrong []error

	before []string // shell lines that come before the program
	start  Option
}

func (d *decoder) bad(o Option, format string, args ...any) {
	d.wrong = append(d.wrong, fmt.Errorf("%s:%d: %s: "+format, append([]any{d.file, o.Line, o.Name}, args...)...))
}

func (d *decoder) note(o Option, why string) {
	d.notes = append(d.notes, fmt.Sprintf("%s:%d: %s=%s is left out: %s", d.file, o.Line, o.Name, o.Value, why))
}

// place reads the rules, in their present and their old names.
func (d *decoder) place(o Option) {
	list, err := words(o.Value)
	if err != nil {
		d.bad(o, "%v", err)
		return
	}
	for i, text := range list {
		if list[i], err = placement.Expand(d.unit.Name, text); err != nil {
			d.bad(o, "%v", err)
			return
		}
	}
	u := &d.unit
	switch strings.TrimPrefix(strings.TrimPrefix(o.Name, "X-Condition"), "X-") {
	case "MachineID":
		if len(list) == 0 {
			d.bad(o, "has no value")
		} else if u.Pin == "" { // the first one wins
			u.Pin = list[0]
			d.notes = append(d.notes, fmt.Sprintf("%s:%d: pin is fleet's id of the machine: write the machine's name there", d.file, o.Line))
		}
	case "MachineOf":
		for _, name := range list {
			u.With = append(u.With, placement.Bare(name))
		}
	case "MachineMetadata":
		for _, pair := range list {
			d.metadata(o, pair)
		}
	case "Conflicts":
		for _, pattern := range list {
			pattern = placement.Bare(pattern)
			if name, ok := strings.CutSuffix(pattern, "@*"); ok && (component(name) || component(strings.TrimPrefix(name, prefix))) {
				if pattern = name; !component(pattern) {
					pattern = strings.TrimPrefix(name, prefix)
				}
			}
			u.Conflicts = append(u.Conflicts, pattern)
		}
	case "Replaces":
		for _, name := range list {
			u.Replaces = append(u.Replaces, placement.Bare(name))
		}
	case "Global":
		d.global(o)
	case "MachineBootID":
		d.bad(o, "a boot of a machine is gone with the next: use MachineID")
	default:
		d.bad(o, "no such option of placement: there are Conflicts, Global, MachineID, MachineMetadata, MachineOf, Replaces")
	}
}

func (d *decoder) metadata(o Option, pair string) {
	key, value, ok := strings.Cut(pair, "=")
	u := &d.unit
	name, runs := strings.CutPrefix(key, metaRuns)
	switch {
	case !ok || key == "":
		d.bad(o, "%q is not KEY=VALUE", pair)
	case key == metaNode && u.Pin == "":
		u.Pin = value
	case runs && component(name) && value == "true":
		u.With = append(u.With, name)
	default:
		if u.On == nil {
			u.On = map[string][]string{}
		}
		if !slices.Contains(u.On[key], value) {
			u.On[key] = append(u.On[key], value)
		}
	}
}

// global: the last value wins.
func (d *decoder) global(o Option) {
	switch strings.ToLower(strings.Trim(o.Value, `"'`)) {
	case "true", "yes", "1", "on", "t":
		d.unit.Global = true
	case "false", "no", "0", "off", "f":
		d.unit.Global = false
	default:
		d.bad(o, "%q is neither true nor false", o.Value)
	}
}

func (d *decoder) own(o Option) {
	list, err := words(o.Value)
	if err != nil || len(list) != 1 {
		d.bad(o, "%q is not one value", o.Value)
		return
	}
	value, err := placement.Expand(d.unit.Name, list[0])
	if err != nil {
		d.bad(o, "%v", err)
	}
	switch o.Name {
	case "Fact":
		d.unit.Facts = append(d.unit.Facts, value)
	case "ReadyHttp", "ReadyTcp", "ReadyFile":
		if d.unit.Asks == nil {
			d.unit.Asks = map[string]string{}
		}
		d.unit.Asks[strings.ToLower(strings.TrimPrefix(o.Name, "Ready"))] = value
	default:
		d.bad(o, "no such option")
	}
}

func (d *decoder) service(o Option) {
	var err error
	switch o.Name {
	case "Type":
		switch o.Value {
		case "simple", "exec", "idle":
		case "notify":
			d.unit.Notify = true
		default:
			d.bad(o, "%s is not supervised by Slipway: use simple or notify", o.Value)
		}
	case "ExecStart":
		if d.start.Name != "" {
			d.bad(o, "is given twice: a unit has one program")
		}
		d.start = o
	case "ExecStartPre":
		d.prepare(o)
	case "Environment":
		list, err := words(o.Value)
		for _, pair := range list {
			key, value, ok := strings.Cut(pair, "=")
			if value, err = placement.Expand(d.unit.Name, value); !ok || err != nil {
				d.bad(o, "%q is not NAME=VALUE: %v", pair, err)
				continue
			}
			if d.unit.Env == nil {
				d.unit.Env = map[string]string{}
			}
			d.unit.Env[key] = value
		}
		if err != nil {
			d.bad(o, "%v", err)
		}
	case "EnvironmentFile":
		d.environment(o)
	case "WorkingDirectory":
		if d.unit.Dir, err = placement.Expand(d.unit.Name, o.Value); err != nil {
			d.bad(o, "%v", err)
		}
	case "TimeoutStopSec":
		d.timeout(o)
	case "User", "Group", "DynamicUser", "RootDirectory", "Sockets":
		d.bad(o, "Slipway's units run as root: start the program with setpriv or chroot yourself")
	case "Restart", "RestartSec", "TimeoutStartSec", "StartLimitInterval", "StartLimitBurst", "NotifyAccess", "RemainAfterExit":
	default:
		d.note(o, "a unit of Slipway has no such option")
	}
}

func (d *decoder) timeout(o Option) {
	text := o.Value
	if strings.Trim(text, "0123456789") == "" {
		text += "s"
	}
	limit, err := time.ParseDuration(strings.ReplaceAll(strings.ReplaceAll(text, "min", "m"), " ", ""))
	if err != nil || limit <= 0 {
		d.note(o, "it is no time between SIGTERM and SIGKILL")
		return
	}
	d.unit.StopTimeout = limit
}
