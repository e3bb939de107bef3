// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/slipway-project/slipway/api/cluster/v1alpha1"
	"github.com/slipway-project/slipway/internal/core/placement"
)

const maxUnits = 1000 // fleet's own limit: more of them are pods

// machineLabels checks the labels of single machines.
func (k *checker) machineLabels(at string, in v1alpha1.Pool, pool *Pool) {
	pool.MachineLabels = in.MachineLabels
	var known []string
	for n := range pool.Nodes() {
		known = append(known, pool.MachineName(k.out.Name, n))
	}
	for _, name := range slices.Sorted(maps.Keys(in.MachineLabels)) {
		here := Child(at, name)
		switch {
		case len(in.Machines) > 0:
			k.say(here, "write them into the machine's line: machines: [{name: "+clip(name)+", labels: …}]", "the pool lists its machines")
		case !slices.Contains(known, name):
			hint := "the pool has " + known[0]
			if len(known) > 1 {
				hint += " to " + known[len(known)-1]
			}
			k.say(here, hint, "the pool has no machine %s", show(name))
		}
		k.labels(here, in.MachineLabels[name])
	}
}

// units checks each unit by itself, and then the rules of all.
func (k *checker) units(in []v1alpha1.Unit) {
	seen := map[string]string{}
	for i, u := range in {
		at := Element("spec.units", i)
		for _, name := range k.unitNames(at, u, seen) {
			k.unit(at, name, u)
		}
	}
	if len(k.out.Units) > maxUnits {
		k.say("spec.units", "run them as pods", "%d units are more than %d", len(k.out.Units), maxUnits)
		return
	}
	var all []placement.Unit
	paths := map[string]string{}
	for _, u := range k.out.Units {
		all = append(all, u.Unit)
		paths[u.Name] = u.Path
	}
	machines := k.out.MachineNames()
	if k.above["spec.pools"] || k.above["metadata"] {
		machines = nil // what was refused may have been the one that is meant
	}
	for _, p := range placement.Check(all, ComponentNames(), machines) {
		k.rule(paths[p.Unit], p)
	}
}

// rule reports a problem with a rule, once for all instances.
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

// unitNames are the names of the unit's instances, or its own.
func (k *checker) unitNames(at string, u v1alpha1.Unit, seen map[string]string) []string {
	if !k.out.Said(at + ".name") {
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
	switch said := k.out.Said(at + ".instances"); {
	case template && len(u.Instances) == 0:
		k.say(at+".name", "name its instances: [main]", "%s is a template, which does not run by itself", show(u.Name))
		return nil
	case said && !template:
		k.say(at+".instances", "call it "+clip(prefix)+"@", "only a template has instances")
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
			k.say(at+".name", "choose another", "%s is a component", name)
		case seen[name] != "":
			k.say(at+".name", "", "%s is the name of %s too", show(name), seen[name])
		}
		if seen[name] == "" {
			seen[name] = at
		}
	}
	return names
}

func isUnitWord(s string) bool {
	const longest = 63
	return len(s) <= longest && only(s, func(r rune) bool { return lower(r) || digit(r) || r == '-' || r == '_' || r == '.' }) && (lower(rune(s[0])) || digit(rune(s[0])))
}

func (k *checker) unit(at, name string, in v1alpha1.Unit) {
	rules, bad := placement.Unit{
		Name: name, On: in.On, With: in.With, Conflicts: in.Conflicts, Global: in.Global, Pin: in.Pin, Replaces: in.Replaces,
	}.Resolve()
	if bad != nil {
		k.rule(at, *bad)
	}
	text := func(path, s string) string {
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
	u := Unit{Unit: rules, Placed: in.Placed, Path: at, Dir: text(at+".directory", in.Directory)}
	for i, arg := range in.Exec {
		u.Exec = append(u.Exec, text(Element(at+".exec", i), arg))
	}
	for _, key := range slices.Sorted(maps.Keys(in.Env)) {
		here := Child(at+".env", key)
		if !isVariable(key) {
			k.say(here, "letters, digits and underscores, no digit in front", "%s is not the name of a variable", show(key))
			continue
		}
		if u.Env == nil {
			u.Env = map[string]string{}
		}
		u.Env[key] = text(here, in.Env[key])
	}
	k.program(at, in, u)
	k.labelRules(at+".on", rules.On)
	u.Ready = UnitReady{
		HTTP: text(at+".ready.http", in.Ready.HTTP), TCP: text(at+".ready.tcp", in.Ready.TCP), File: text(at+".ready.file", in.Ready.File), Notify: in.Ready.Notify,
	}
	k.ready(at+".ready", u.Ready)
	for i, f := range in.Facts {
		if !isVariable(f) || strings.ToUpper(f) != f {
			k.say(Element(at+".facts", i), "see /run/slipway/facts.env on a machine, such as DEFAULT_IPV4", "%s is not the name of a fact", show(f))
		}
		u.Facts = append(u.Facts, f)
	}
	if in.StopTimeout != "" {
		var err error
		if u.StopTimeout, err = time.ParseDuration(in.StopTimeout); err != nil || u.StopTimeout <= 0 || u.StopTimeout > time.Hour {
			k.say(at+".stopTimeout", "write a number and a unit, such as 30s, at most 1h", "%s is not a time", show(in.StopTimeout))
		}
	}
	k.out.Units = append(k.out.Units, u)
}

func (k *checker) program(at string, in v1alpha1.Unit, u Unit) {
	switch {
	case !k.out.Said(at + ".exec"):
		k.missing(at, "exec", "write the program and its arguments: [/usr/bin/my-server, --port=80]")
	case len(in.Exec) == 0:
		k.say(at+".exec", "write the program and its arguments", "is empty")
	case !path.IsAbs(u.Exec[0]):
		k.say(Element(at+".exec", 0), "write the whole path: nobody searches for it", "%s is not an absolute path", show(u.Exec[0]))
	}
	if u.Dir != "" && !path.IsAbs(u.Dir) {
		k.say(at+".directory", "write the whole path", "%s is not an absolute path", show(u.Dir))
	}
}

// labelRules: a rule that no label could ever meet is a slip.
func (k *checker) labelRules(at string, on map[string][]string) {
	for _, key := range slices.Sorted(maps.Keys(on)) {
		here := Child(at, key)
		if !isQualified(key) {
			k.say(here, qualifiedHint, "%s is not the key of a label", show(key))
		}
		for i, v := range on[key] {
			if !isLabelValue(v) {
				k.say(Element(here, i), "at most 63 letters, digits, dashes, dots and underscores", "%s is not the value of a label", show(v))
			}
		}
	}
}

func (k *checker) ready(at string, r UnitReady) {
	questions := 0
	for _, asked := range []bool{r.HTTP != "", r.TCP != "", r.File != "", r.Notify} {
		if asked {
			questions++
		}
	}
	if questions > 1 {
		k.say(at, "choose one of http, tcp, file, notify", "%d questions: only one can be asked", questions)
	}
	if u, err := url.Parse(r.HTTP); r.HTTP != "" && (err != nil || u.Scheme != "http" || u.Host == "") {
		k.say(at+".http", "such as http://127.0.0.1:8080/healthz", "%s is no address that can be asked", show(r.HTTP))
	}
	if _, port, ok := strings.Cut(r.TCP, ":"); r.TCP != "" && (!ok || !isDigits(port)) {
		k.say(at+".tcp", "such as 127.0.0.1:8080", "%s is not host:port", show(r.TCP))
	}
	if r.File != "" && !path.IsAbs(r.File) {
		k.say(at+".file", "write the whole path", "%s is not an absolute path", show(r.File))
	}
}
