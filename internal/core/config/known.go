// SPDX-License-Identifier: Apache-2.0

package config

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/core/spec"
)

// enough problems: each costs a search for the name that was meant.
const enough = 100

// knower finds overrides with which a program would exit at every start, because its release does not know them.
type knower struct {
	spec     spec.Cluster
	release  catalog.Release
	problems []spec.Problem
}

// Unknown adds the overrides that the release does not know to the problems of a spec, sorted by position. It skips fields
// that have a problem already.
func Unknown(s spec.Cluster, r catalog.Release, problems []spec.Problem) []spec.Problem {
	reported := make(map[string]bool, len(problems))
	for _, p := range problems {
		reported[p.Path] = true
	}
	all := slices.Clone(problems)
	for _, p := range unknown(s, r) {
		if !reported[p.Path] {
			all = append(all, p)
		}
	}
	spec.Sort(all)
	return all
}

// unknown returns what the release does not know. A release without tables accepts everything.
func unknown(s spec.Cluster, r catalog.Release) []spec.Problem {
	k := &knower{spec: s, release: r}
	for _, name := range slices.Sorted(maps.Keys(s.FeatureGates)) {
		k.gate(spec.Child("spec.featureGates", name), name, strconv.FormatBool(s.FeatureGates[name]))
	}
	for _, x := range components(&s.Components) {
		k.flags(x)
		k.fileGates(x)
		if known := r.Fields(x.program); known != nil {
			k.object(x, known, "", "spec.components."+x.name+".config", x.Config)
		}
	}
	return k.problems
}

func (k *knower) full() bool { return len(k.problems) >= enough }

func (k *knower) say(path, hint, format string, args ...any) {
	if !k.full() {
		k.problems = append(k.problems, k.spec.Report(path, hint, format, args...))
	}
}

func (k *knower) flags(x component) {
	if k.release.Flags(x.program) == nil {
		return // no table
	}
	for _, name := range slices.Sorted(maps.Keys(x.Flags)) {
		at := spec.Child("spec.components."+x.name+".flags", name)
		flag, known := k.release.Flag(x.program, name)
		switch {
		case k.full():
			return
		case !known:
			k.say(at, k.flagHint(x.program, name), "%s of release %s has no such flag", x.program, k.release.Kubernetes)
		default:
			k.values(x, at, flag)
			if name == "feature-gates" && x.kubernetes() {
				k.flagGates(x, at)
			}
		}
	}
}

// flagHint looks for the same name in other programs first, then for a similar name.
func (k *knower) flagHint(program, name string) string {
	for _, other := range components(&k.spec.Components) {
		if flag, ok := k.release.Flag(other.program, name); ok && !flag.Deprecated {
			return other.program + " has it: spec.components." + other.name + ".flags"
		}
	}
	var names []string
	for _, f := range k.release.Flags(program) {
		if !f.Deprecated && !f.Exits {
			names = append(names, f.Name)
		}
	}
	return didYouMean(name, names)
}

// values checks the values of a flag; a removed flag has none.
func (k *knower) values(x component, at string, flag catalog.Flag) {
	values := x.Flags[flag.Name]
	off := !slices.ContainsFunc(values, func(v string) bool { return v != "false" })
	switch {
	case flag.Exits && !off:
		k.say(at, "remove it", "with this flag %s does something else and exits", x.program)
		return
	case (flag.Kind == catalog.BoolFlag || flag.Kind == catalog.OneFlag) && len(values) > 1:
		k.say(at, "write one", "takes one value: of several the last one would win")
		return
	}
	for _, v := range values {
		if flag.Kind == catalog.BoolFlag && v != "true" && v != "false" {
			k.say(at, "write true or false", "%.60q is neither true nor false", v)
		}
		if _, err := strconv.ParseInt(v, 0, 64); flag.Value == catalog.IntValue && err != nil && !strings.Contains(v, "${") {
			k.say(at, "write decimal digits", "%.60q is not a whole number", v)
		}
		if _, err := time.ParseDuration(v); flag.Value == catalog.DurationValue && err != nil {
			k.say(at, "write a number and a unit, such as 90s or 1m30s", "%.60q is not a duration", v)
		}
	}
}

func didYouMean(name string, known []string) string {
	if near := spec.Nearest(name, known); near != "" {
		return `did you mean "` + near + `"?`
	}
	return ""
}

// flagGates checks --feature-gates of a user: A=true,B=false. All programs but those of each node also accept kube:A=true.
func (k *knower) flagGates(x component, at string) {
	prefix := "kube:"
	if x.name == "kubelet" || x.name == "kubeProxy" {
		prefix = ""
	}
	for _, value := range x.Flags["feature-gates"] {
		for pair := range strings.SplitSeq(value, ",") {
			name, v, ok := strings.Cut(strings.TrimSpace(pair), "=")
			switch {
			case name == "" && !ok: // an empty list, or a comma at its end
			case !ok:
				k.say(at, "write "+name+"=true", "%.60q sets no feature gate", pair)
			default:
				k.gate(at, strings.TrimPrefix(name, prefix), v)
			}
		}
	}
}

// fileGates checks featureGates of a configuration file.
func (k *knower) fileGates(x component) {
	gates, _ := x.Config["featureGates"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(gates)) {
		at := spec.Child("spec.components."+x.name+".config.featureGates", name)
		on, isBool := gates[name].(bool)
		switch {
		case isBool:
			k.gate(at, name, strconv.FormatBool(on))
		case gates[name] != nil && k.release.Gates() != nil: // nil removes it
			k.say(at, "", "must be true or false")
		}
	}
}

// gate checks one feature gate and its value.
func (k *knower) gate(at, name, value string) {
	if k.release.Gates() == nil || k.full() {
		return
	}
	gate, known := k.release.Gate(name)
	switch {
	case !known:
		var names []string
		for _, g := range k.release.Gates() {
			names = append(names, g.Name)
		}
		k.say(at, didYouMean(name, names), "release %s has no feature gate %s", k.release.Kubernetes, name)
	case value != "true" && value != "false":
		k.say(at, "write true or false", "feature gate %s is %.60q", name, value)
	case gate.Locked != "" && value != gate.Locked:
		k.say(at, "remove it", "feature gate %s is locked to %s in release %s", name, gate.Locked, k.release.Kubernetes)
	}
}

// object checks the names of a configuration file's fields and the kinds of plain values.
func (k *knower) object(x component, known map[string]catalog.FieldKind, prefix, at string, in map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(in)) {
		here, full := spec.Child(at, name), prefix+name
		kind, ok := known[full]
		switch {
		case k.full():
			return
		case !ok:
			var siblings []string
			for path := range known {
				if sibling, ok := strings.CutPrefix(path, prefix); ok && !strings.Contains(sibling, ".") {
					siblings = append(siblings, sibling)
				}
			}
			slices.Sort(siblings)
			k.say(here, didYouMean(name, siblings), "the configuration of %s has no such field", x.program)
		case in[name] == nil: // removes the field
		case kind == catalog.ObjectField:
			child, isObject := in[name].(map[string]any)
			if !isObject {
				k.say(here, "", "must be an object")
				continue
			}
			k.object(x, known, full+".", here, child)
		default:
			k.value(here, full, kind, in[name])
		}
	}
}

func (k *knower) value(at, path string, kind catalog.FieldKind, v any) {
	switch kind {
	case catalog.BoolField:
		if _, ok := v.(bool); !ok {
			k.say(at, "", "must be true or false")
		}
	case catalog.TextField:
		if _, ok := v.(string); !ok {
			k.say(at, "put it in quotes", "must be text")
		}
	case catalog.DurationField:
		s, ok := v.(string)
		if _, err := time.ParseDuration(s); !ok || err != nil {
			k.say(at, "write a number and a unit, such as 90s or 1m30s", "is not a duration")
		}
	case catalog.IntField:
		n, ok := v.(int64)
		switch {
		case !ok:
			k.say(at, "write decimal digits", "must be a whole number")
		case path == "maxPods" && n < 0:
			k.say(at, "", "must not be negative")
		}
	case catalog.AnyField, catalog.ObjectField:
	}
}
