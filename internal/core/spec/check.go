// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/slipway-project/slipway/api/cluster/v1alpha1"
)

// checker translates the YAML types into [Cluster] and finds what the types cannot say.
type checker struct {
	d   *decoder
	out Cluster
	// What the decoder refused: the paths, and every path above one. Their values are not there to be judged.
	refused, above map[string]bool
	unknownRole    bool
}

func check(in v1alpha1.Cluster, d *decoder, o Options) Cluster {
	k := &checker{d: d, refused: map[string]bool{}, above: map[string]bool{}}
	for _, p := range d.problems {
		k.refused[p.Path] = true
		for at := parent(p.Path); at != "" && !k.above[at]; at = parent(at) {
			k.above[at] = true
		}
	}
	k.out = Cluster{File: d.file, Places: d.places, Name: in.Metadata.Name, Gates: in.Spec.FeatureGates}
	k.name(in.Metadata.Name)
	k.version(in.Spec.KubernetesVersion, o)
	k.network(in.Spec.Networking)
	k.pools(in.Spec.Pools)
	k.reach(in)
	k.controlPlane(in.Spec.ControlPlane)
	k.gates(in.Spec.FeatureGates)
	k.components(in.Spec.Components)
	k.units(in.Spec.Units)
	k.addOns(in.Spec.AddOns)
	k.os(in.Spec.OS)
	k.hooks(in.Spec.Hooks)
	k.staticPods(in.Spec.StaticPods)
	k.fileAssets(in.Spec.FileAssets)
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

// missing reports a field that must be there, unless a field beside it was refused: that one was probably meant.
func (k *checker) missing(object, field, hint string) {
	if !k.above[object] {
		k.say(Child(object, field), hint, "is missing")
	}
}

// oneOf reports a word that is not among the known ones.
func (k *checker) oneOf(path, what, word string, known ...string) bool {
	if slices.Contains(known, word) {
		return true
	}
	if k.d.full() {
		return false
	}
	hint := "there are " + strings.Join(known, ", ")
	if near := Nearest(word, known); near != "" {
		hint = "did you mean " + show(near) + "?"
	}
	k.say(path, hint, "unknown %s %s", what, show(word))
	return false
}

const maxName = 40 // leaves room for pool and number in 63 characters of host name

func (k *checker) name(name string) {
	const path = "metadata.name"
	switch {
	case name == "" && !k.out.Said(path):
		k.missing("metadata", "name", "")
	case !isLabel(name):
		k.say(path, labelHint, "%s is not a DNS label", show(name))
	case len(name) > maxName:
		k.say(path, "", "is longer than %d characters", maxName)
	}
}

// CheckName tells why something cannot be the name of a cluster. Names become folders, so this comes before any use of one.
func CheckName(name string) error {
	switch {
	case !isLabel(name):
		return fmt.Errorf("%s is no name of a cluster: use %s", show(name), labelHint)
	case len(name) > maxName:
		return fmt.Errorf("%s is longer than %d characters", show(name), maxName)
	}
	return nil
}

func (k *checker) version(text string, o Options) {
	const path = "spec.kubernetesVersion"
	if !k.out.Said(path) {
		return
	}
	k.out.Minor = text
	bare := strings.TrimPrefix(text, "v")
	parts := strings.Split(bare, ".")
	number := len(parts) >= 2 && !slices.ContainsFunc(parts[:2], func(s string) bool { return !isDigits(s) })
	known := "there are " + strings.Join(o.Minors, ", ")
	if o.Minors == nil {
		known = ""
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

func (k *checker) controlPlane(in v1alpha1.ControlPlane) {
	if k.out.Said("spec.controlPlane.form") {
		k.oneOf("spec.controlPlane.form", "form", in.Form, HostUnits, StaticPods)
	}
	k.out.Form, k.out.ExtraSANs = in.Form, in.ExtraSANs
	k.loadBalancer(in.LoadBalancer)
	seen := map[string]bool{}
	for i, san := range in.ExtraSANs {
		path := Element("spec.controlPlane.extraSANs", i)
		if !isAddress(san) && !isDomain(strings.TrimPrefix(san, "*.")) {
			k.say(path, "write a name such as api.example.org or an address, without port", "%s is neither a DNS name nor an address", show(san))
		}
		if seen[san] {
			k.say(path, "remove one", "%s is given twice", show(san))
		}
		seen[san] = true
	}
}

func (k *checker) loadBalancer(at string) {
	const path = "spec.controlPlane.loadBalancer"
	k.out.LoadBalancer = at
	if !k.out.Said(path) || at == "" {
		return
	}
	host, port, ok := strings.Cut(at, ":")
	if n, err := strconv.Atoi(port); !ok || err != nil || n < 1 || n > 65535 || !isAddress(host) && !isDomain(host) {
		k.say(path, "write a name or an IPv4 address and a port, such as api.example.org:6443", "%s is not host:port", show(at))
	}
}

func (k *checker) gates(gates map[string]bool) {
	for _, name := range slices.Sorted(maps.Keys(gates)) {
		if !isGate(name) {
			k.say(Child("spec.featureGates", name), "feature gates look like InPlacePodVerticalScaling", "%s is not the name of a feature gate", show(name))
		}
	}
}

func (k *checker) addOns(in []v1alpha1.AddOn) {
	seen := map[string]string{}
	for i, a := range in {
		path := Element("spec.addOns", i)
		k.out.AddOns = append(k.out.AddOns, AddOn{Name: a.Name, Manifest: a.Manifest})
		k.uniqueLabel(path, a.Name, seen)
		if !k.out.Said(path + ".manifest") {
			k.missing(path, "manifest", "write YAML text: manifest: |")
			continue
		}
		k.manifest(path+".manifest", a.Manifest)
	}
}

// uniqueLabel checks the name of a list's element.
func (k *checker) uniqueLabel(path, name string, seen map[string]string) {
	at := path + ".name"
	switch {
	case !k.out.Said(at):
		k.missing(path, "name", "")
		return
	case !isLabel(name):
		k.say(at, labelHint, "%s is not a DNS label", show(name))
	case seen[name] != "":
		k.say(at, "", "%s is the name of %s too", show(name), seen[name])
	}
	if seen[name] == "" {
		seen[name] = path
	}
}

// line is how a problem inside a text is placed.
func line(n int) string { return fmt.Sprintf("line %d: ", n) }
