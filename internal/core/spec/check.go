// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/core/endpoint"
)

// checker finds what the types cannot express. It removes from out what is unfit for further checks.
type checker struct {
	d   *decoder
	out Cluster
	// The paths that the decoder refused, and every path above one. Their values cannot be checked.
	refused, above map[string]bool
	unknownRole    bool
}

func check(in Document, d *decoder, o Options) Cluster {
	k := &checker{d: d, refused: map[string]bool{}, above: map[string]bool{}}
	for _, p := range d.problems {
		k.refused[p.Path] = true
		for at := parent(p.Path); at != "" && !k.above[at]; at = parent(at) {
			k.above[at] = true
		}
	}
	k.out = Cluster{File: d.file, Positions: d.positions, Name: in.Metadata.Name, Spec: in.Spec}
	k.name()
	k.version(o)
	k.network()
	k.pools()
	k.ssh()
	k.controlPlane()
	k.gates()
	k.components()
	k.units()
	k.addOns()
	k.os()
	k.hooks()
	k.staticPods()
	k.fileAssets()
	return k.out
}

// say reports a problem, unless the decoder has already refused the value or a part of it.
func (k *checker) say(path, hint, format string, args ...any) {
	if k.above[path] || k.d.full() {
		return
	}
	for at := path; at != ""; at = parent(at) {
		if k.refused[at] {
			return
		}
	}
	k.d.problem(k.out.Report(path, hint, format, args...))
}

// missing reports a required field that is not set, unless the decoder refused something in the object: that was
// probably meant to be the field.
func (k *checker) missing(object, field, hint string) {
	if !k.above[object] {
		k.say(Child(object, field), hint, "is missing")
	}
}

// oneOf reports a word that is not one of the known words.
func (k *checker) oneOf(path, what, word string, known ...string) bool {
	if slices.Contains(known, word) {
		return true
	}
	if k.d.full() {
		return false
	}
	hint := "choose one of " + strings.Join(known, ", ")
	if near := Nearest(word, known); near != "" {
		hint = "did you mean " + show(near) + "?"
	}
	k.say(path, hint, "unknown %s %s", what, show(word))
	return false
}

// firstSet returns the first of the paths that the document sets, or the first path.
func (k *checker) firstSet(paths ...string) string {
	for _, p := range paths {
		if k.out.IsSet(p) {
			return p
		}
	}
	return paths[0]
}

// unique reports a value that another element of a list has already.
func unique[T comparable](k *checker, path string, value T, owner string, seen map[T]string) {
	if other, ok := seen[value]; ok {
		k.say(path, "", "%v is already used by %s", value, other)
		return
	}
	seen[value] = owner
}

// uniqueLabel checks the name of a list's element: required, a DNS label, and used once.
func (k *checker) uniqueLabel(path, name string, seen map[string]string) {
	at := path + ".name"
	switch {
	case !k.out.IsSet(at):
		k.missing(path, "name", "")
		return
	case !isLabel(name):
		k.say(at, labelHint, "%s is not a DNS label", show(name))
	case seen[name] != "":
		k.say(at, "", "%s is already the name of %s", show(name), seen[name])
	}
	if seen[name] == "" {
		seen[name] = path
	}
}

const maxName = 40 // leaves room for pool and number in a host name of 63 characters

func (k *checker) name() {
	const path = "metadata.name"
	switch name := k.out.Name; {
	case name == "" && !k.out.IsSet(path):
		k.missing("metadata", "name", "")
	case !isLabel(name):
		k.say(path, labelHint, "%s is not a DNS label", show(name))
	case len(name) > maxName:
		k.say(path, "", "is longer than %d characters", maxName)
	}
}

// CheckName returns why a name cannot be the name of a cluster. Names become directories, so check before any use.
func CheckName(name string) error {
	switch {
	case !isLabel(name):
		return fmt.Errorf("%s is not a valid cluster name: use %s", show(name), labelHint)
	case len(name) > maxName:
		return fmt.Errorf("%s is longer than %d characters", show(name), maxName)
	}
	return nil
}

func (k *checker) version(o Options) {
	const path = "spec.kubernetesVersion"
	text := k.out.KubernetesVersion
	if !k.out.IsSet(path) {
		return
	}
	bare := strings.TrimPrefix(text, "v")
	parts := strings.Split(bare, ".")
	number := len(parts) >= 2 && !slices.ContainsFunc(parts[:2], func(s string) bool { return !isDigits(s) })
	known := ""
	if o.Minors != nil {
		known = "the catalogue has " + strings.Join(o.Minors, ", ")
	}
	switch {
	case !number:
		k.say(path, known, "%s is not a minor version such as 1.36", show(text))
	case len(parts) > 2 || bare != text:
		minor := parts[0] + "." + parts[1]
		k.say(path, "write "+minor+": the patch comes from the release catalogue", "%s is not a minor version", show(text))
	case o.Minors != nil && !slices.Contains(o.Minors, text):
		k.say(path, known, "no release %s in the catalogue", text)
	}
}

func (k *checker) controlPlane() {
	const path = "spec.controlPlane"
	in := k.out.ControlPlane
	if k.out.IsSet(path + ".form") {
		k.oneOf(path+".form", "form", in.Form, HostUnits, StaticPods)
	}
	if h := in.LoadBalancer.Host; !in.LoadBalancer.IsZero() && (h.Addr.Is6() || h.Name != "" && !isDomain(h.Name)) {
		k.say(path+".loadBalancer", "write a name or an IPv4 address and a port, such as api.example.org:6443", "%s is not host:port", show(in.LoadBalancer.String()))
	}
	seen := map[endpoint.Host]bool{}
	for i, san := range in.ExtraSANs {
		at := Element(path+".extraSANs", i)
		if !san.Addr.IsValid() && !isDomain(strings.TrimPrefix(san.Name, "*.")) {
			k.say(at, "write a name such as api.example.org or an address, without port", "%s is neither a DNS name nor an address", show(san.Name))
		}
		if seen[san] {
			k.say(at, "remove one", "%s is given twice", show(san.String()))
		}
		seen[san] = true
	}
}

func (k *checker) gates() {
	for _, name := range slices.Sorted(maps.Keys(k.out.FeatureGates)) {
		if !isGate(name) {
			k.say(Child("spec.featureGates", name), "feature gates look like InPlacePodVerticalScaling", "%s is not the name of a feature gate", show(name))
		}
	}
}

func (k *checker) components() {
	in := k.out.Components
	for _, x := range []struct {
		name string
		Component
		file bool // has a configuration file in YAML
	}{
		{"etcd", in.Etcd, false},
		{"apiserver", in.APIServer, false},
		{"controllerManager", in.ControllerManager, false},
		{"scheduler", in.Scheduler, true},
		{"kubelet", in.Kubelet, true},
		{"kubeProxy", in.KubeProxy, true},
		{"containerd", in.Containerd, false},
	} {
		at := "spec.components." + x.name
		k.flags(at+".flags", x.Flags)
		if !x.file && x.Config != nil {
			k.say(at+".config", "use flags; only kubelet, kubeProxy and scheduler have config", "%s has no configuration file", x.name)
		}
		k.texts(at+".config", x.Config)
		for _, name := range slices.Sorted(maps.Keys(x.Env)) {
			here := Child(at+".env", name)
			if !isVariable(name) {
				k.say(here, variableHint, "%s is not the name of a variable", show(name))
			}
			k.line(here, x.Env[name])
		}
	}
	k.coreDNS()
}

func (k *checker) flags(path string, in map[string]Values) {
	for _, name := range slices.Sorted(maps.Keys(in)) {
		at := Child(path, name)
		switch bare := strings.TrimLeft(name, "-"); {
		case bare != name:
			k.say(at, "write "+show(bare), "write the flag without leading dashes")
		case strings.Contains(name, "="):
			before, after, _ := strings.Cut(name, "=")
			k.say(at, "write "+clip(before)+": "+show(after), "a flag's name cannot contain =")
		case !isFlag(name):
			k.say(at, "lower-case letters, digits and dashes", "%s is not the name of a flag", show(name))
		}
		values := in[name]
		switch {
		case values != nil && len(values) == 0:
			k.say(at, "write null to remove the flag", "a list without values")
		case len(values) == 1 && !k.out.IsSet(Element(at, 0)): // a scalar
			k.line(at, values[0])
		default:
			for i, v := range values {
				k.line(Element(at, i), v)
			}
		}
	}
}

// line checks a text that becomes part of a command line or an environment.
func (k *checker) line(path, s string) {
	if strings.ContainsFunc(s, isControl) {
		k.say(path, "write it on one line", "%s contains control characters or line breaks", show(s))
	}
	k.placeholders(path, s)
}

// texts checks the texts of a configuration tree.
func (k *checker) texts(path string, v any) {
	switch v := v.(type) {
	case string:
		if strings.ContainsFunc(v, func(r rune) bool { return r != '\n' && r != '\t' && isControl(r) }) {
			k.say(path, "remove them", "%s contains control characters", show(v))
		}
		k.placeholders(path, v)
	case []any:
		for i := range v {
			k.texts(Element(path, i), v[i])
		}
	case map[string]any:
		for key := range v {
			k.texts(Child(path, key), v[key])
		}
	}
}

func (k *checker) placeholders(path, s string) {
	for {
		_, rest, ok := strings.Cut(s, "${")
		if !ok {
			return
		}
		name, after, closed := strings.Cut(rest, "}")
		if !closed {
			k.say(path, "write ${node.name}, ${node.address} or ${node.podCIDR}", "a placeholder without closing brace")
			return
		}
		k.oneOf(path, "placeholder", "${"+name+"}", "${node.name}", "${node.address}", "${node.podCIDR}")
		s = after
	}
}

func (k *checker) coreDNS() {
	const at, most = "spec.components.coredns", 100
	in := &k.out.Components.CoreDNS
	if k.out.IsSet(at+".replicas") && (in.Replicas < 1 || in.Replicas > most) {
		k.say(at+".replicas", "choose 1 to 100", "%d is not a valid number of replicas", in.Replicas)
	}
	if k.out.IsSet(at+".corefile") && strings.TrimSpace(in.Corefile) == "" {
		k.say(at+".corefile", "remove the field to use the default", "is empty")
	}
	if open, closed := strings.Count(in.Corefile, "{"), strings.Count(in.Corefile, "}"); open != closed {
		k.say(at+".corefile", "", "has %d opening and %d closing braces", open, closed)
	}
}
