// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/core/spec"
)

// Print writes the configuration as a spec in which nothing is left to defaults, each value with its origin as a comment.
// Parsing and completing it again, for the same release, prints the same bytes.
func Print(c Cluster) []byte {
	p := &printer{}
	p.raw(0, "# Complete for Kubernetes "+c.Release+". Each value's origin stands behind it: default, derived from another, or user.")
	p.raw(0, "apiVersion: "+spec.APIVersion)
	p.raw(0, "kind: "+spec.Kind)
	p.raw(0, "metadata:")
	p.value(1, "name", c.Name, c.Origins["metadata.name"])
	p.raw(0, "spec:")
	p.value(1, "kubernetesVersion", c.Minor, c.Origins["kubernetesVersion"])
	p.raw(1, "networking:")
	for _, f := range []field{
		{path: "podCIDR", value: c.PodCIDR.String()},
		{path: "nodePodPrefix", value: c.NodePodPrefix},
		{path: "serviceCIDR", value: c.ServiceCIDR.String()},
		{path: "clusterDomain", value: c.ClusterDomain},
		{path: "dnsAddress", value: c.DNSAddress.String()},
	} {
		p.value(2, f.path, f.value, c.Origins["networking."+f.path])
	}
	p.pools(c)
	p.raw(1, "controlPlane:")
	p.value(2, "form", c.Form, c.Origins["controlPlane.form"])
	p.value(2, "extraSANs", normal(c.ExtraSANs), c.Origins["controlPlane.extraSANs"])
	p.value(2, "loadBalancer", c.LoadBalancer, c.Origins["controlPlane.loadBalancer"])
	p.tree(1, "featureGates", normal(c.Gates), c.Origins["featureGates"], nil)
	p.raw(1, "components:")
	for _, x := range c.components() {
		p.component(x)
	}
	p.raw(2, "coredns:")
	p.value(3, "replicas", c.CoreDNS.Replicas, c.Origins["components.coredns.replicas"])
	p.value(3, "corefile", c.CoreDNS.Corefile, c.Origins["components.coredns.corefile"])
	p.units(c)
	p.addOns(c)
	p.os(c)
	p.files(c)
	return []byte(p.b.String())
}

// printer writes block YAML, two spaces a level. It is its own writer because the comments are half of the text.
type printer struct{ b strings.Builder }

func (p *printer) raw(level int, line string) {
	fmt.Fprintf(&p.b, "%s%s\n", strings.Repeat("  ", level), line)
}

// value writes "key: value # origin".
func (p *printer) value(level int, key string, v any, o Origin) {
	if s, ok := v.(string); ok && blockable(s) {
		p.block(level, key, s, o)
		return
	}
	p.raw(level, keyText(key)+": "+flow(v, false)+" "+o.comment())
}

// block writes a text of several lines as such.
func (p *printer) block(level int, key, s string, o Origin) {
	body, sign := strings.CutSuffix(s, "\n")
	header := "|-"
	if sign {
		header = "|"
	}
	p.raw(level, keyText(key)+": "+header+" "+o.comment())
	for _, line := range strings.Split(body, "\n") {
		if line == "" {
			p.b.WriteByte('\n')
			continue
		}
		p.raw(level+1, line)
	}
}

// tree writes an object key by key. origins has the origin of each leaf by path; nil: only the object has one.
func (p *printer) tree(level int, key string, v any, o Origin, origins func(path string) Origin) {
	p.subtree(level, key, v, o, "", origins)
}

func (p *printer) subtree(level int, key string, v any, o Origin, path string, origins func(string) Origin) {
	object, ok := v.(map[string]any)
	if !ok || len(object) == 0 {
		p.value(level, key, v, o)
		return
	}
	comment := ""
	if origins == nil {
		comment = " " + o.comment()
	}
	p.raw(level, keyText(key)+":"+comment)
	for _, k := range slices.Sorted(maps.Keys(object)) {
		at := spec.Child(path, k)
		switch {
		case origins != nil:
			p.subtree(level+1, k, object[k], origins(at), at, origins)
		default:
			p.raw(level+1, keyText(k)+": "+flow(object[k], false))
		}
	}
}

func (p *printer) component(x named) {
	p.raw(2, x.name+":")
	flags := make(map[string]any, len(x.Flags))
	for name, f := range x.Flags {
		switch len(f.Values) {
		case 0:
			flags[name] = nil
		case 1:
			flags[name] = f.Values[0]
		default:
			flags[name] = normal(f.Values)
		}
	}
	p.tree(3, "flags", flags, std(""), func(path string) Origin { return x.Flags[path].Origin })
	if x.Config != nil {
		p.tree(3, "config", x.withRemoved(), std(""), func(path string) Origin { return x.Origins[path] })
	}
	env := make(map[string]any, len(x.Env))
	for name, v := range x.Env {
		env[name] = v
	}
	p.tree(3, "env", env, std(""), func(path string) Origin { return x.Origins["env."+path] })
}

// withRemoved is the configuration with null for each field that the user took away.
func (c Component) withRemoved() map[string]any {
	tree, _ := clone(c.Config, verbatim).(map[string]any)
	for path := range c.Origins {
		keys := spec.Split(path)
		if keys[0] != "env" && !has(tree, keys) {
			put(tree, keys, nil)
		}
	}
	return tree
}

func has(tree map[string]any, keys []string) bool {
	for _, k := range keys[:len(keys)-1] {
		child, ok := tree[k].(map[string]any)
		if !ok {
			return false
		}
		tree = child
	}
	_, ok := tree[keys[len(keys)-1]]
	return ok
}

// comment leaves out the user's line, so that the text does not change when lines move.
func (o Origin) comment() string {
	if o.From == User || o.Note == "" {
		return "# " + string(o.From)
	}
	return "# " + string(o.From) + ": " + o.Note
}
