// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"maps"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/api/cluster/v1alpha1"
)

func (k *checker) components(in v1alpha1.Components) {
	for _, x := range []struct {
		name string
		in   v1alpha1.Component
		out  *Component
		file bool // has a configuration file in YAML
	}{
		{"etcd", in.Etcd, &k.out.Etcd, false},
		{"apiserver", in.APIServer, &k.out.APIServer, false},
		{"controllerManager", in.ControllerManager, &k.out.ControllerManager, false},
		{"scheduler", in.Scheduler, &k.out.Scheduler, true},
		{"kubelet", in.Kubelet, &k.out.Kubelet, true},
		{"kubeProxy", in.KubeProxy, &k.out.KubeProxy, true},
		{"containerd", in.Containerd, &k.out.Containerd, false},
	} {
		at := "spec.components." + x.name
		x.out.Flags = k.flags(at+".flags", x.in.Flags)
		x.out.Env = x.in.Env
		x.out.Config = x.in.Config
		if !x.file && x.in.Config != nil {
			k.say(at+".config", "use flags; kubelet, kubeProxy and scheduler have config", "%s has no configuration file", x.name)
		}
		k.texts(at+".config", x.in.Config)
		k.env(at+".env", x.in.Env)
	}
	k.coreDNS(in.CoreDNS)
}

func (k *checker) flags(path string, in map[string]any) map[string][]string {
	out := make(map[string][]string, len(in))
	for _, name := range slices.Sorted(maps.Keys(in)) {
		at := Child(path, name)
		switch bare := strings.TrimLeft(name, "-"); {
		case bare != name:
			k.say(at, "write "+show(bare), "a flag's name has no leading dashes here")
		case strings.Contains(name, "="):
			before, after, _ := strings.Cut(name, "=")
			k.say(at, "write "+clip(before)+": "+show(after), "a flag's name holds no =")
		case !isFlag(name):
			k.say(at, "lower-case letters, digits and dashes", "%s is not the name of a flag", show(name))
		}
		switch v := in[name].(type) {
		case nil:
			out[name] = nil
		case string:
			out[name] = []string{v}
			k.line(at, v)
		case []any:
			out[name] = k.values(at, v)
		}
	}
	return out
}

func (k *checker) values(path string, list []any) []string {
	if len(list) == 0 {
		k.say(path, "write null to take the flag away", "a list without values")
	}
	var out []string
	for i, v := range list {
		s, ok := v.(string)
		if !ok {
			k.say(Element(path, i), "", "must be text, a number, true or false")
			continue
		}
		k.line(Element(path, i), s)
		out = append(out, s)
	}
	return out
}

func (k *checker) env(path string, env map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if !isVariable(name) {
			k.say(Child(path, name), "letters, digits and underscores, no digit first", "%s is not the name of a variable", show(name))
		}
		k.line(Child(path, name), env[name])
	}
}

// line checks a text that becomes part of a command line or an environment.
func (k *checker) line(path, s string) {
	if strings.ContainsFunc(s, isControl) {
		k.say(path, "write it on one line", "%s holds control characters or line ends", show(s))
	}
	k.placeholders(path, s)
}

// texts checks the texts of a configuration tree.
func (k *checker) texts(path string, v any) {
	switch v := v.(type) {
	case string:
		if strings.ContainsFunc(v, func(r rune) bool { return r != '\n' && r != '\t' && isControl(r) }) {
			k.say(path, "remove them", "%s holds control characters", show(v))
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
			k.say(path, "write ${node.name}, ${node.address} or ${node.podCIDR}", "a placeholder without its closing brace")
			return
		}
		k.oneOf(path, "placeholder", "${"+name+"}", "${node.name}", "${node.address}", "${node.podCIDR}")
		s = after
	}
}

func (k *checker) coreDNS(in v1alpha1.CoreDNS) {
	const at, most = "spec.components.coredns", 100
	if in.Replicas != nil {
		k.out.CoreDNS.Replicas = *in.Replicas
		if *in.Replicas < 1 || *in.Replicas > most {
			k.say(at+".replicas", "choose 1 to 100", "%d is no number of replicas", *in.Replicas)
		}
	}
	k.out.CoreDNS.Corefile = in.Corefile
	if k.out.Said(at+".corefile") && strings.TrimSpace(in.Corefile) == "" {
		k.say(at+".corefile", "leave the field away for the default", "is empty")
	}
	if open, closed := strings.Count(in.Corefile, "{"), strings.Count(in.Corefile, "}"); open != closed {
		k.say(at+".corefile", "", "has %d opening and %d closing braces", open, closed)
	}
}
