// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/core/placement"
)

// Decode reads a unit that was written for fleet. The notes list the options that are dropped, each with its
// line. An unknown placement option is an error: without it, the unit could run on any machine.
func Decode(file, text string) (u Unit, notes []string, err error) {
	options, err := Parse(file, text)
	if err != nil {
		return Unit{}, nil, err
	}
	d := decoder{file: file}
	d.unit.Name = placement.Bare(path.Base(file))
	if prefix, _, template := placement.Split(d.unit.Name); template {
		return Unit{}, nil, fmt.Errorf("%s: a template cannot run: name an instance, such as %s@NAME.service", file, prefix)
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
				d.note(o, "Slipway orders only units on the same machine (MachineOf)")
			}
		case "Install":
			d.note(o, "the agent starts all placed units")
		default:
			d.bad(o, "unknown section [%s]: use [Unit], [Service], [Install] or [%s]", o.Section, sectionFleet)
		}
	}
	d.finish()
	return d.unit, d.notes, errors.Join(d.wrong...)
}

// decoder is the state of Decode.
type decoder struct {
	file  string
	unit  Unit
	notes []string
	wrong []error

	before []string // shell commands to run before the program
	start  Option
}

// bad adds an error about an option.
func (d *decoder) bad(o Option, format string, args ...any) {
	d.wrong = append(d.wrong, fmt.Errorf("%s:%d: %s: "+format, append([]any{d.file, o.Line, o.Name}, args...)...))
}

// note records that an option is dropped.
func (d *decoder) note(o Option, why string) {
	d.notes = append(d.notes, fmt.Sprintf("%s:%d: %s=%s is dropped: %s", d.file, o.Line, o.Name, o.Value, why))
}

// place reads a placement rule, under its current or its old name.
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
		} else if u.Pin == "" { // the first one counts, as in fleet
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
		d.bad(o, "a boot id changes with every boot: use MachineID")
	default:
		d.bad(o, "unknown placement option: use Conflicts, Global, MachineID, MachineMetadata, MachineOf or Replaces")
	}
}

// metadata reads one KEY=VALUE pair of MachineMetadata: a pin, a component to run with, or a label.
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

// global reads the option Global. The last value counts, as in fleet.
func (d *decoder) global(o Option) {
	switch strings.ToLower(strings.Trim(o.Value, `"'`)) {
	case "true", "yes", "1", "on", "t":
		d.unit.Global = true
	case "false", "no", "0", "off", "f":
		d.unit.Global = false
	default:
		d.bad(o, "%q is not a boolean: use true or false", o.Value)
	}
}

// own reads an option of the section that only Encode writes.
func (d *decoder) own(o Option) {
	list, err := words(o.Value)
	if err != nil || len(list) != 1 {
		d.bad(o, "%q is not a single value", o.Value)
		return
	}
	value, err := placement.Expand(d.unit.Name, list[0])
	if err != nil {
		d.bad(o, "%v", err)
	}
	switch o.Name {
	case "Fact":
		d.unit.Facts = append(d.unit.Facts, value)
	case "ReadyHttp":
		d.unit.Ready.HTTP = value
	case "ReadyTcp":
		d.unit.Ready.TCP = value
	case "ReadyFile":
		d.unit.Ready.File = value
	default:
		d.bad(o, "unknown option")
	}
}

// service reads an option of the section Service.
func (d *decoder) service(o Option) {
	var err error
	switch o.Name {
	case "Type":
		switch o.Value {
		case "simple", "exec", "idle":
		case "notify":
			d.unit.Ready.Notify = true
		default:
			d.bad(o, "Slipway does not support type %s: use simple or notify", o.Value)
		}
	case "ExecStart":
		if d.start.Name != "" {
			d.bad(o, "given twice: a unit runs one program")
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
		if d.unit.Directory, err = placement.Expand(d.unit.Name, o.Value); err != nil {
			d.bad(o, "%v", err)
		}
	case "TimeoutStopSec":
		d.timeout(o)
	case "User", "Group", "DynamicUser", "RootDirectory", "Sockets":
		d.bad(o, "Slipway runs units as root: start the program with setpriv or chroot instead")
	case "Restart", "RestartSec", "TimeoutStartSec", "StartLimitInterval", "StartLimitBurst", "NotifyAccess", "RemainAfterExit":
	default:
		d.note(o, "Slipway has no such option")
	}
}

// timeout reads TimeoutStopSec: seconds, or a duration with units.
func (d *decoder) timeout(o Option) {
	text := o.Value
	if strings.Trim(text, "0123456789") == "" {
		text += "s"
	}
	limit, err := time.ParseDuration(strings.ReplaceAll(strings.ReplaceAll(text, "min", "m"), " ", ""))
	if err != nil || limit <= 0 {
		d.note(o, "not a valid duration")
		return
	}
	d.unit.StopTimeout = limit
}

// variables reports whether systemd replaces a variable in arg; $$ is an escaped dollar sign.
func variables(arg string) bool {
	found := regexp.MustCompile(`\$(\$|\{\w+\}|\w+)`).FindAllString(arg, -1)
	return slices.ContainsFunc(found, func(v string) bool { return v != "$$" })
}

// finish sets the unit's command. It uses a shell only if ExecStartPre, environment files or variables
// require it.
func (d *decoder) finish() {
	if d.start.Name == "" {
		d.wrong = append(d.wrong, fmt.Errorf("%s: ExecStart is missing", d.file))
		return
	}
	args := d.arguments(d.start)
	if len(args) == 0 {
		return
	}
	plain := len(d.before) == 0
	if plain && !slices.ContainsFunc(args, variables) {
		for _, a := range args {
			d.unit.Exec = append(d.unit.Exec, strings.ReplaceAll(a, "$$", "$"))
		}
		return
	}
	d.unit.Exec = []string{"/bin/sh", "-ec", strings.Join(append(d.before, "exec "+shell(args)), "\n")}
}

// arguments splits a command into words and expands its specifiers.
func (d *decoder) arguments(o Option) []string {
	list, err := words(strings.TrimLeft(o.Value, "-@+!:"))
	if err != nil || len(list) == 0 {
		d.bad(o, "%q is not a command: %v", o.Value, err)
		return nil
	}
	if strings.ContainsRune("@+!:", rune(o.Value[0])) {
		d.bad(o, "prefix %q is not supported: omit it", o.Value[:1])
		return nil
	}
	for i, w := range list {
		if list[i], err = placement.Expand(d.unit.Name, w); err != nil {
			d.bad(o, "%v", err)
			return nil
		}
	}
	return list
}

// prepare turns an ExecStartPre command into a shell command. It drops the checks of facts that Encode has
// written.
func (d *decoder) prepare(o Option) {
	args := d.arguments(o)
	if len(args) == 3 && args[0] == "/bin/sh" && strings.HasPrefix(args[2], "test -s /run/slipway/facts/") {
		return
	}
	if len(args) == 0 {
		return
	}
	line := shell(args)
	if strings.HasPrefix(o.Value, "-") {
		line += " || true"
	}
	d.before = append(d.before, line)
}

// environment turns an EnvironmentFile into shell commands. The file of facts needs none: every unit gets the
// facts.
func (d *decoder) environment(o Option) {
	name, optional := strings.CutPrefix(o.Value, "-")
	name, err := placement.Expand(d.unit.Name, name)
	switch {
	case err != nil:
		d.bad(o, "%v", err)
	case name == factsFile:
	case optional:
		d.before = append(d.before, "set -a; [ ! -e "+single(name)+" ] || . "+single(name)+"; set +a")
	default:
		d.before = append(d.before, "set -a; . "+single(name)+"; set +a")
	}
}

// shell quotes a command for a shell. As with systemd, ${NAME} stays one word, and an argument $NAME is split
// into words.
func shell(args []string) string {
	out := make([]string, len(args))
	for i, a := range args {
		switch {
		case !strings.Contains(a, "$"):
			out[i] = single(a)
		case regexp.MustCompile(`^\$\w+$`).MatchString(a):
			out[i] = a
		default:
			text := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "`", "\\`").Replace(a)
			out[i] = `"` + strings.ReplaceAll(text, "$$", `\$`) + `"`
		}
	}
	return strings.Join(out, " ")
}

// single quotes a word for a shell, if necessary.
func single(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
