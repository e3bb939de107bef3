// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"slices"
	"strings"
	"time"

	"github.com/slipway-project/slipway/api/cluster/v1alpha1"
)

func (k *checker) hooks(in []v1alpha1.Hook) {
	const longest = 40 // it becomes the name of a unit
	seen := map[string]string{}
	for i, h := range in {
		at := Element("spec.hooks", i)
		k.uniqueLabel(at, h.Name, seen)
		if len(h.Name) > longest {
			k.say(at+".name", "", "is longer than %d characters", longest)
		}
		k.phase(at, h)
		k.command(at, h.Command)
		k.roles(at, h.Roles)
		k.out.Hooks = append(k.out.Hooks, Hook{
			Name: h.Name, Before: h.Before, After: h.After, Command: h.Command, Roles: h.Roles, Timeout: k.timeout(at+".timeout", h.Timeout), EveryBoot: h.EveryBoot,
		})
	}
}

func (k *checker) phase(at string, h v1alpha1.Hook) {
	before, after := k.out.Said(at+".before"), k.out.Said(at+".after")
	switch {
	case before && after:
		k.say(at+".after", "make two hooks", "a hook runs either before or after a phase")
	case !before && !after:
		k.missing(at, "before", "write before: or after: with one of "+strings.Join(Phases(), ", "))
	}
	for _, x := range []struct {
		field, phase string
		said         bool
	}{{"before", h.Before, before}, {"after", h.After, after}} {
		if !x.said || !k.oneOf(at+"."+x.field, "phase", x.phase, Phases()...) {
			continue
		}
		if x.field == "before" && x.phase == PhaseNodeReady {
			k.say(at+".before", "write after: node-ready, or before: kubelet", "the node becomes ready by itself: nothing can be put before it")
		}
		if only := x.phase == PhaseEtcd || x.phase == PhaseControlPlane; only && len(h.Roles) > 0 && !slices.Contains(h.Roles, ControlPlane) {
			k.say(at+".roles", "add control-plane, or choose another phase", "only control planes have the phase %s", x.phase)
		}
	}
}

func (k *checker) command(at string, command []string) {
	if len(command) == 0 {
		k.missing(at, "command", "write the program and its arguments: [/bin/sh, -c, …]")
		return
	}
	if !strings.HasPrefix(command[0], "/") {
		k.say(Element(at+".command", 0), "write the program's whole path, or /bin/sh, -c and a command line", "%s is not a whole path", show(command[0]))
	}
	for i, word := range command {
		if strings.ContainsFunc(word, func(r rune) bool { return r != '\n' && r != '\t' && isControl(r) }) {
			k.say(Element(at+".command", i), "remove them", "%s holds control characters", show(word))
		}
		k.hookPlaceholders(Element(at+".command", i), word)
	}
}

// hookPlaceholders lets shells have their own ${…}.
func (k *checker) hookPlaceholders(at, word string) {
	for {
		_, rest, ok := strings.Cut(word, "${node")
		if !ok {
			return
		}
		name, after, _ := strings.Cut(rest, "}")
		k.oneOf(at, "placeholder", "${node"+name+"}", "${node.name}", "${node.address}", "${node.podCIDR}")
		word = after
	}
}

func (k *checker) timeout(at, text string) time.Duration {
	if !k.out.Said(at) {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < time.Second || d > time.Hour {
		k.say(at, "write one from 1s to 1h, such as 30s or 10m", "%s is no timeout", show(text))
	}
	return d
}
