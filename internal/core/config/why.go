// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/core/spec"
)

// Answer is a value and where it comes from.
type Answer struct {
	Path   string // the field's path in the spec
	Value  string // as [Print] writes it; "null" for what the user took away
	Origin Origin
}

// String is "spec.components.apiserver.flags.audit-log-path: null (user, cluster.yaml:41)".
func (a Answer) String() string {
	value := a.Value
	if strings.Contains(value, "\n") {
		value = "\n" + strings.TrimSuffix(value, "\n") + "\n"
	}
	note := ""
	if a.Origin.Note != "" {
		note = map[Source]string{User: ", ", Default: ": ", Derived: ": "}[a.Origin.From] + a.Origin.Note
	}
	return fmt.Sprintf("%s: %s (%s%s)", a.Path, value, a.Origin.From, note)
}

// Why answers where a value comes from. The path may leave out "spec." and "components.": apiserver.flags.secure-port.
func Why(c Cluster, path string) (Answer, error) {
	all := c.answers()
	asked := dotted(path)
	var below []string
	for _, above := range []string{"", "spec.", "spec.components."} {
		for i, a := range all {
			known := dotted(a.Path)
			if known == above+asked {
				return all[i], nil
			}
			if strings.HasPrefix(known, above+asked+".") {
				below = append(below, a.Path)
			}
		}
	}
	if len(below) > 0 {
		return Answer{}, fmt.Errorf("explain %s: it holds several values: ask for one of %s", path, some(below))
	}
	return Answer{}, c.unknown(path, all)
}

// unknown suggests a near name beside the one asked for, or a near object; a flag that is not set is no mistake and gets
// its own answer.
func (c Cluster) unknown(path string, all []Answer) error {
	asked := shorten(dotted(path))
	object, name := cutLast(asked)
	var names, objects []string
	for _, a := range all {
		o, n := cutLast(shorten(dotted(a.Path)))
		if o == object {
			names = append(names, n)
		}
		objects = append(objects, o)
	}
	if near := spec.Nearest(name, names); near != "" {
		return fmt.Errorf("explain %s: not set: did you mean %q?", path, object+"."+near)
	}
	if near := spec.Nearest(object, slices.Compact(objects)); near != "" && near != object {
		return fmt.Errorf("explain %s: no such value: did you mean %q?", path, near)
	}
	for _, x := range c.components() {
		if name, ok := strings.CutPrefix(asked, x.name+".flags."); ok {
			return fmt.Errorf("explain %s: not set: %s decides; set spec.components.%s.flags.%s to change it", path, x.name, x.name, name)
		}
	}
	return fmt.Errorf("explain %s: no such value: ask for one such as apiserver.flags.secure-port", path)
}

func shorten(path string) string {
	return strings.TrimPrefix(strings.TrimPrefix(path, "spec."), "components.")
}

func cutLast(path string) (object, name string) {
	i := max(strings.LastIndexByte(path, '.'), 0)
	return path[:i], strings.TrimPrefix(path[i:], ".")
}

// answers lists every value in the order of the spec.
func (c Cluster) answers() []Answer {
	var out []Answer
	add := func(path string, v any, o Origin) {
		text, ok := v.(string)
		if !ok || !strings.Contains(text, "\n") {
			text = flow(v, false)
		}
		out = append(out, Answer{Path: path, Value: text, Origin: o})
	}
	top := c.top()
	for _, path := range slices.Sorted(maps.Keys(c.Origins)) {
		full := "spec." + path
		if path == "metadata.name" {
			full = path
		}
		add(full, top[path], c.Origins[path])
	}
	for _, x := range c.components() {
		at := "spec.components." + x.name
		for _, name := range slices.Sorted(maps.Keys(x.Flags)) {
			f := x.Flags[name]
			var v any = normal(f.Values)
			switch len(f.Values) {
			case 0:
				v = nil
			case 1:
				v = f.Values[0]
			}
			add(spec.Child(at+".flags", name), v, f.Origin)
		}
		for _, path := range slices.Sorted(maps.Keys(x.Origins)) {
			if name := spec.Split(path); name[0] == "env" {
				add(at+"."+path, x.Env[name[1]], x.Origins[path])
			} else {
				add(at+".config."+path, lookup(x.Config, name), x.Origins[path])
			}
		}
	}
	return out
}

// top is the values of c.Origins.
func (c Cluster) top() map[string]any {
	out := map[string]any{
		"metadata.name":               c.Name,
		"kubernetesVersion":           c.Minor,
		"networking.podCIDR":          c.PodCIDR.String(),
		"networking.nodePodPrefix":    c.NodePodPrefix,
		"networking.serviceCIDR":      c.ServiceCIDR.String(),
		"networking.clusterDomain":    c.ClusterDomain,
		"networking.dnsAddress":       c.DNSAddress.String(),
		"controlPlane.form":           c.Form,
		"controlPlane.extraSANs":      normal(c.ExtraSANs),
		"controlPlane.loadBalancer":   c.LoadBalancer,
		"featureGates":                normal(c.Gates),
		"components.coredns.replicas": c.CoreDNS.Replicas,
		"components.coredns.corefile": c.CoreDNS.Corefile,
	}
	var addOns []any
	for _, a := range c.AddOns {
		addOns = append(addOns, a.Name)
	}
	out["addOns"] = addOns
	pods, assets := c.fileNames()
	out["staticPods"], out["fileAssets"] = pods, assets
	for path, v := range c.OS.values() {
		out["os."+path] = v
	}
	out["hooks"] = anyRows(c.hookRows())
	var units []any
	for _, u := range c.Units {
		units = append(units, u.Name)
	}
	out["units"] = units
	for i, p := range c.Pools {
		at := spec.Element("pools", i)
		labels := make(map[string]any, len(p.Labels))
		for k, v := range p.Labels {
			labels[k] = v
		}
		out[at+".name"], out[at+".roles"], out[at+".count"], out[at+".labels"] = p.Name, normal(p.Roles), len(p.Nodes), labels
		out[at+".taints"] = strings.Join(taintRows(p.Taints), ", ")
		out[at+".replacement"] = p.Replacement
		out[at+".machines"] = strings.Join(machineRows(p.Nodes), ", ")
		out[at+".machineLabels"] = machineLabels(p.Nodes)
	}
	return out
}

func lookup(tree map[string]any, keys []string) any {
	var v any = tree
	for _, k := range keys {
		object, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = object[k]
	}
	return v
}

// dotted is a path without brackets and quotes, so that users need none.
func dotted(path string) string { return strings.Join(spec.Split(path), ".") }

func some(paths []string) string {
	const most = 8
	if len(paths) > most {
		return strings.Join(paths[:most], ", ") + ", …"
	}
	return strings.Join(paths, ", ")
}
