// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/core/placement"
)

const maxUnits = 1000 // fleet's own limit; more than that should be pods

// units replaces each template by its instances, expands specifiers, and checks each unit and then the rules of all.
func (k *checker) units() {
	declared := k.out.Units
	k.out.Units = nil
	seen, paths := map[string]string{}, map[string]string{}
	for i, u := range declared {
		at := Element("spec.units", i)
		for _, name := range k.unitNames(at, u, seen) {
			k.out.Units = append(k.out.Units, k.unit(at, name, u))
			paths[name] = at
		}
	}
	if len(k.out.Units) > maxUnits {
		k.say("spec.units", "run them as pods", "%d units exceed the limit of %d", len(k.out.Units), maxUnits)
		return
	}
	machines := k.out.MachineNames()
	if k.above["spec.pools"] || k.above["metadata"] {
		machines = nil // what was refused may have been the pinned machine
	}
	for _, p := range placement.Check(k.out.Units, ComponentNames(), machines) {
		k.rule(paths[p.Unit], p)
	}
}

// rule reports a problem with a placement rule, once for all instances of a template.
func (k *checker) rule(at string, p placement.Problem) {
	field := at + "." + p.Field
	if p.Index >= 0 {
		field = Element(field, p.Index)
	}
	if !k.refused[field] {
		k.say(field, p.Hint, "%s", p.Msg)
		k.refused[field] = true
	}
}

// unitNames returns the names of the unit's instances, or its own name.
func (k *checker) unitNames(at string, u Unit, seen map[string]string) []string {
	if !k.out.IsSet(at + ".name") {
		k.missing(at, "name", "")
		return nil
	}
	prefix, instance, template := placement.Split(u.Name)
	if !isUnitWord(prefix) || instance != "" && !isUnitWord(instance) || strings.HasSuffix(u.Name, placement.Suffix) {
		k.say(at+".name", "at most 63 lower-case letters, digits, dashes, dots and underscores, such as web, db@main or, with instances, db@",
			"%s is not the name of a unit", show(u.Name))
		return nil
	}
	names := []string{u.Name}
	switch set := k.out.IsSet(at + ".instances"); {
	case template && len(u.Instances) == 0:
		k.say(at+".name", "add instances: [main]", "%s is a template without instances", show(u.Name))
		return nil
	case set && !template:
		k.say(at+".instances", "name the unit "+clip(prefix)+"@", "only a template has instances")
		return nil
	case template:
		names = nil
	}
	for i, inst := range u.Instances {
		if !isUnitWord(inst) {
			k.say(Element(at+".instances", i), "lower-case letters, digits, dashes, dots and underscores", "%s is not the name of an instance", show(inst))
			continue
		}
		names = append(names, prefix+"@"+inst)
	}
	for _, name := range names {
		switch {
		case slices.Contains(ComponentNames(), name):
			k.say(at+".name", "choose another", "%s is the name of a component", name)
		case seen[name] != "":
			k.say(at+".name", "", "%s is already the name of %s", show(name), seen[name])
		}
		if seen[name] == "" {
			seen[name] = at
		}
	}
	return names
}

// unit returns one instance of a unit, without specifiers.
func (k *checker) unit(at, name string, in Unit) Unit {
	in.Name = name
	u, bad := placement.Resolve(in)
	if bad != nil {
		k.rule(at, *bad)
	}
	expand := func(path, s string) string {
		out, err := placement.Expand(name, s)
		if err != nil && !k.refused[path] {
			k.say(path, "", "%v", err)
			k.refused[path] = true // once for all instances
		}
		if strings.ContainsRune(out, 0) {
			k.say(path, "remove it", "a null byte")
		}
		return out
	}
	u.Instances, u.Exec, u.Env, u.Directory = nil, nil, nil, expand(at+".directory", in.Directory)
	for i, arg := range in.Exec {
		u.Exec = append(u.Exec, expand(Element(at+".exec", i), arg))
	}
	for _, key := range slices.Sorted(maps.Keys(in.Env)) {
		here := Child(at+".env", key)
		if !isVariable(key) {
			k.say(here, variableHint, "%s is not the name of a variable", show(key))
			continue
		}
		if u.Env == nil {
			u.Env = map[string]string{}
		}
		u.Env[key] = expand(here, in.Env[key])
	}
	u.Ready = UnitReady{
		HTTP: expand(at+".ready.http", in.Ready.HTTP), TCP: expand(at+".ready.tcp", in.Ready.TCP), File: expand(at+".ready.file", in.Ready.File),
		Notify: in.Ready.Notify,
	}
	k.program(at, u)
	k.labelRules(at+".on", u.On)
	k.ready(at+".ready", u.Ready)
	for i, f := range in.Facts {
		if !isVariable(f) || strings.ToUpper(f) != f {
			k.say(Element(at+".facts", i), "see /run/slipway/facts.env on a machine, such as DEFAULT_IPV4", "%s is not the name of a fact", show(f))
		}
	}
	if path := at + ".stopTimeout"; k.out.IsSet(path) && (u.StopTimeout <= 0 || u.StopTimeout > time.Hour) {
		k.say(path, "choose at most 1h, such as 30s", "%s is not a usable timeout", u.StopTimeout)
	}
	return u
}

func (k *checker) program(at string, u Unit) {
	switch {
	case !k.out.IsSet(at + ".exec"):
		k.missing(at, "exec", "write the program and its arguments: [/usr/bin/my-server, --port=80]")
	case len(u.Exec) == 0:
		k.say(at+".exec", "write the program and its arguments", "is empty")
	case !path.IsAbs(u.Exec[0]):
		k.say(Element(at+".exec", 0), "write the absolute path: no PATH is searched", "%s is not an absolute path", show(u.Exec[0]))
	}
	if u.Directory != "" && !path.IsAbs(u.Directory) {
		k.say(at+".directory", "write the absolute path", "%s is not an absolute path", show(u.Directory))
	}
}

// labelRules reports rules that no label can meet.
func (k *checker) labelRules(at string, on map[string][]string) {
	for _, key := range slices.Sorted(maps.Keys(on)) {
		here := Child(at, key)
		if !isQualified(key) {
			k.say(here, qualifiedHint, "%s is not the key of a label", show(key))
		}
		for i, v := range on[key] {
			if !isLabelValue(v) {
				k.say(Element(here, i), valueHint, "%s is not the value of a label", show(v))
			}
		}
	}
}

func (k *checker) ready(at string, r UnitReady) {
	checks := 0
	for _, set := range []bool{r.HTTP != "", r.TCP != "", r.File != "", r.Notify} {
		if set {
			checks++
		}
	}
	if checks > 1 {
		k.say(at, "choose one of http, tcp, file, notify", "has %d checks: only one is allowed", checks)
	}
	if u, err := url.Parse(r.HTTP); r.HTTP != "" && (err != nil || u.Scheme != "http" || u.Host == "") {
		k.say(at+".http", "write one such as http://127.0.0.1:8080/healthz", "%s is not an http URL", show(r.HTTP))
	}
	if _, port, ok := strings.Cut(r.TCP, ":"); r.TCP != "" && (!ok || !isDigits(port)) {
		k.say(at+".tcp", "write one such as 127.0.0.1:8080", "%s is not host:port", show(r.TCP))
	}
	if r.File != "" && !path.IsAbs(r.File) {
		k.say(at+".file", "write the absolute path", "%s is not an absolute path", show(r.File))
	}
}
