// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/core/placement"
)

// Encode writes one of the user's units. It returns an error for anything that fleet would treat differently.
func Encode(u Unit) (string, error) {
	if u.Global && len(u.With) > 0 {
		return "", fmt.Errorf("unit %s: fleet ignores MachineOf in global units: use on instead of with", u.Name)
	}
	w := &writer{}
	w.section("Unit")
	w.set("Description", strings.ReplaceAll(placement.Escape(u.Name), "\n", " ")+", placed by fleet")
	w.section("Service")
	if u.Ready.Notify {
		w.set("Type", "notify")
		w.set("NotifyAccess", "all")
	}
	w.set("EnvironmentFile", "-"+factsFile)
	for _, k := range slices.Sorted(maps.Keys(u.Env)) {
		w.set("Environment", quoted(k+"="+u.Env[k]))
	}
	if u.Directory != "" {
		w.set("WorkingDirectory", placement.Escape(u.Directory))
	}
	for _, f := range u.Facts { // the unit restarts until the fact is known
		w.set("ExecStartPre", "/bin/sh -c "+quoted("test -s /run/slipway/facts/"+f+" || { echo 'fact "+f+" is unknown' >&2; exit 1; }"))
	}
	w.command("ExecStart", u.Exec)
	w.always(u.StopTimeout.String(), u.StopTimeout > 0)
	w.rules(u)
	if r := u.Ready; r.HTTP+r.TCP+r.File != "" || len(u.Facts) > 0 {
		w.section(sectionOwn)
		for _, probe := range []struct{ option, value string }{{"ReadyFile", r.File}, {"ReadyHttp", r.HTTP}, {"ReadyTcp", r.TCP}} {
			if probe.value != "" {
				w.set(probe.option, quoted(probe.value))
			}
		}
		for _, f := range u.Facts {
			w.set("Fact", f)
		}
	}
	return w.b.String(), errors.Join(w.wrong...)
}

// writer builds the text of a unit file and collects errors.
type writer struct {
	b     strings.Builder
	wrong []error
}

// section starts a section of the file.
func (w *writer) section(name string) {
	if w.b.Len() > 0 {
		w.b.WriteByte('\n')
	}
	w.b.WriteString("[" + name + "]\n")
}

// longest is the line length limit of fleet's parser.
const longest = 2000

// set writes an option.
func (w *writer) set(name, value string) {
	if len(name)+len(value) > longest {
		w.wrong = append(w.wrong, fmt.Errorf("write %s: the value is longer than fleet's limit of %d characters", name, longest))
	}
	w.b.WriteString(name + "=" + value + "\n")
}

// command writes one argument per line. It escapes dollar signs, so that systemd passes them on.
func (w *writer) command(name string, args []string) {
	parts := make([]string, len(args))
	for i, a := range args {
		parts[i] = strings.ReplaceAll(quoted(a), "$", "$$")
		if len(parts[i]) > longest {
			w.wrong = append(w.wrong, fmt.Errorf("write %s: argument %d is longer than fleet's limit of %d characters", name, i, longest))
		}
	}
	w.b.WriteString(name + "=" + strings.Join(parts, " \\\n  ") + "\n")
}

// always writes the restart settings: restart without limits, as the agent does.
func (w *writer) always(stop string, said bool) {
	w.set("Restart", "always")
	w.set("RestartSec", "1s")
	w.set("StartLimitInterval", "0")
	w.set("TimeoutStartSec", "0")
	if said {
		w.set("TimeoutStopSec", stop)
	}
}

// rules writes the section with fleet's placement rules.
func (w *writer) rules(u placement.Unit) {
	w.section(sectionFleet)
	if u.Global {
		w.set("Global", "true")
	}
	switch {
	case isMachineID(u.Pin):
		w.set("MachineID", u.Pin)
	case u.Pin != "":
		w.set("MachineMetadata", quoted(metaNode+"="+u.Pin))
	}
	for _, key := range slices.Sorted(maps.Keys(u.On)) {
		for _, v := range u.On[key] {
			w.set("MachineMetadata", quoted(key+"="+v))
		}
	}
	for _, name := range u.With {
		if component(name) {
			w.set("MachineMetadata", quoted(metaRuns+name+"=true"))
		} else {
			w.set("MachineOf", placement.Escape(name)+placement.Suffix)
		}
	}
	for _, pattern := range u.Conflicts {
		w.set("Conflicts", fleetPattern(pattern))
	}
	for _, name := range u.Replaces {
		w.set("Replaces", placement.Escape(name)+placement.Suffix)
	}
}

// fleetPattern translates a pattern of unit names into one of fleet's names, which have a suffix.
func fleetPattern(pattern string) string {
	if component(pattern) {
		return prefixed(pattern) + "@*" + placement.Suffix
	}
	pattern = placement.Escape(pattern)
	if ok, err := path.Match(pattern, "x"+placement.Suffix); strings.HasSuffix(pattern, "*") && (ok || err == nil) {
		return pattern
	}
	return pattern + placement.Suffix
}

// prefixed adds the prefix of components, unless the name has it.
func prefixed(component string) string {
	if strings.HasPrefix(component, prefix) {
		return component
	}
	return prefix + component
}

// isMachineID reports whether s is a systemd machine ID.
func isMachineID(s string) bool {
	return len(s) == 32 && strings.Trim(s, "0123456789abcdef") == ""
}
