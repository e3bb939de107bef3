// SPDX-License-Identifier: Apache-2.0

package config

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/slipway-project/slipway/internal/core/spec"
)

// The programs that take feature gates, by their names in a release.
const (
	apiserverProgram         = "kube-apiserver"
	controllerManagerProgram = "kube-controller-manager"
	schedulerProgram         = "kube-scheduler"
	kubeletProgram           = "kubelet"
	kubeProxyProgram         = "kube-proxy"
)

// withGates adds the feature gates that concern every component.
func withGates(c Cluster, flags []setting) []setting {
	if len(c.Gates) == 0 {
		return flags
	}
	var gates []string
	for _, name := range slices.Sorted(maps.Keys(c.Gates)) {
		gates = append(gates, name+"="+strconv.FormatBool(c.Gates[name]))
	}
	return append(flags, setting{"feature-gates", strings.Join(gates, ","), from("featureGates")})
}

// gateFields is withGates for configuration files.
func gateFields(c Cluster, fields []field) []field {
	for _, name := range slices.Sorted(maps.Keys(c.Gates)) {
		fields = append(fields, field{"featureGates." + name, c.Gates[name], from("featureGates")})
	}
	return fields
}

// clusterGates checks those that go to every program that knows them.
func (k *knower) clusterGates() {
	for _, name := range slices.Sorted(maps.Keys(k.spec.Gates)) {
		k.gate(spec.Child("spec.featureGates", name), name, strconv.FormatBool(k.spec.Gates[name]))
	}
}

// flagGates checks a user's own --feature-gates: A=true,B=false. All but the two on each node also take kube:A=true.
func (k *knower) flagGates(o override, at string) {
	prefix := "kube:"
	if o.program == kubeletProgram || o.program == kubeProxyProgram {
		prefix = ""
	}
	for _, value := range o.Flags["feature-gates"] {
		for pair := range strings.SplitSeq(value, ",") {
			name, v, ok := strings.Cut(strings.TrimSpace(pair), "=")
			switch {
			case name == "" && !ok: // an empty list, or a comma at its end
			case !ok:
				k.say(at, "write "+name+"=true", "%.60q sets no gate", pair)
			default:
				k.gate(at, strings.TrimPrefix(name, prefix), v)
			}
		}
	}
}

// fileGates checks a user's own featureGates of a configuration file.
func (k *knower) fileGates(o override) {
	gates, _ := o.Config["featureGates"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(gates)) {
		at := spec.Child("spec.components."+o.name+".config.featureGates", name)
		on, isBool := gates[name].(bool)
		switch {
		case isBool:
			k.gate(at, name, strconv.FormatBool(on))
		case gates[name] != nil && k.release.Gates() != nil: // nil takes it away
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
		hint := didYouMean(name, names)
		k.say(at, hint, "release %s has no feature gate %s", k.release.Kubernetes, name)
	case value != "true" && value != "false":
		k.say(at, "write true or false", "feature gate %s is %.60q", name, value)
	case gate.Locked != "" && value != gate.Locked:
		k.say(at, "leave it away", "feature gate %s is locked to %s in release %s", name, gate.Locked, k.release.Kubernetes)
	}
}
