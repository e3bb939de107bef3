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

// enough problems: nobody reads more, and each costs a search for the name that was meant.
const enough = 100

// knower finds overrides with which a program would end as soon as it starts, for ever.
type knower struct {
	spec     spec.Cluster
	release  catalog.Release
	problems []spec.Problem
}

// Unknown lists the overrides that the release does not know; one without tables knows everything. The spec need not be free of
// problems: places that already have one of those given are passed over, and the answer holds both, sorted by place.
func Unknown(s spec.Cluster, r catalog.Release, problems []spec.Problem) []spec.Problem {
	said := make(map[string]bool, len(problems))
	for _, p := range problems {
		said[p.Path] = true
	}
	all := slices.Clone(problems)
	for _, p := range unknown(s, r) {
		if !said[p.Path] {
			all = append(all, p)
		}
	}
	spec.Sort(all)
	return all
}

// unknown lists what the release does not know: a release without tables knows everything.
func unknown(s spec.Cluster, r catalog.Release) []spec.Problem {
	k := &knower{spec: s, release: r}
	k.clusterGates()
	for _, o := range overrides(s) {
		k.flags(o)
		k.fileGates(o)
		k.fields(o)
	}
	return k.problems
}

func (k *knower) full() bool { return len(k.problems) >= enough }

func (k *knower) say(path, hint, format string, args ...any) {
	if !k.full() {
		k.problems = append(k.problems, k.spec.Report(path, hint, format, args...))
	}
}

func (k *knower) flags(o override) {
	if k.release.Flags(o.program) == nil {
		return // no table: nothing is checked
	}
	for _, name := range slices.Sorted(maps.Keys(o.Flags)) {
		at := spec.Child("spec.components."+o.name+".flags", name)
		flag, known := k.release.Flag(o.program, name)
		switch {
		case k.full():
			return
		case !known:
			k.say(at, k.flagHint(o.program, name), "%s of release %s has no such flag", o.program, k.release.Kubernetes)
		default:
			k.values(o, at, flag)
			if name == "feature-gates" && o.kubernetes() {
				k.flagGates(o, at)
			}
		}
	}
}

// flagHint looks for the same name elsewhere first: that is no accident.
func (k *knower) flagHint(program, name string) string {
	for _, other := range overrides(k.spec) {
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

// values checks what a flag is set to; one that is taken away has none.
func (k *knower) values(o override, at string, flag catalog.Flag) {
	values := o.Flags[flag.Name]
	off := !slices.ContainsFunc(values, func(v string) bool { return v != "false" })
	switch {
	case flag.Exits && !off:
		k.say(at, "leave it away", "with this flag %s does something else and ends", o.program)
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
			k.say(at, "write decimal digits", "%.60q is no whole number", v)
		}
		if _, err := time.ParseDuration(v); flag.Value == catalog.DurationValue && err != nil {
			k.say(at, "write number and unit, such as 90s or 1m30s", "%.60q is no length of time", v)
		}
	}
}

func didYouMean(name string, known []string) string {
	if near := spec.Nearest(name, known); near != "" {
		return `did you mean "` + near + `"?`
	}
	return ""
}

// Programs lists the programs whose flags a spec may override, by their names in a release.
func Programs() []string {
	var names []string
	for _, o := range overrides(spec.Cluster{}) {
		names = append(names, o.program)
	}
	return names
}

// Program is the program behind a component of the spec: Program("apiserver") is "kube-apiserver". Empty: there is none.
func Program(component string) string {
	for _, o := range overrides(spec.Cluster{}) {
		if o.name == component {
			return o.program
		}
	}
	return ""
}

// override is what the user wrote for one component.
type override struct {
	name    string // in the spec
	program string // in the release
	spec.Component
}

func overrides(s spec.Cluster) []override {
	return []override{
		{"etcd", "etcd", s.Etcd},
		{"apiserver", apiserverProgram, s.APIServer},
		{"controllerManager", controllerManagerProgram, s.ControllerManager},
		{"scheduler", schedulerProgram, s.Scheduler},
		{"kubelet", kubeletProgram, s.Kubelet},
		{"kubeProxy", kubeProxyProgram, s.KubeProxy},
		{"containerd", "containerd", s.Containerd},
	}
}

// kubernetes tells the programs that take Kubernetes' feature gates.
func (o override) kubernetes() bool { return strings.HasPrefix(o.program, "kube") }
