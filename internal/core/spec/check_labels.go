// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"maps"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/api/cluster/v1alpha1"
)

func (k *checker) labels(path string, labels map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		at := Child(path, key)
		if !isQualified(key) {
			k.say(at, qualifiedHint, "%s is not the key of a label", show(key))
			continue
		}
		if !isLabelValue(labels[key]) {
			k.say(at, "at most 63 letters, digits, dashes, dots and underscores", "%s is not the value of a label", show(labels[key]))
		}
		if why := reservedLabel(key); why != "" {
			k.say(at, "use a prefix of your own, such as example.org/", "label %s is reserved: %s", key, why)
		}
	}
}

// reservedLabel tells why a kubelet may not set a label on its own node (kubelet's flag check and NodeRestriction).
func reservedLabel(key string) string {
	prefix, _, _ := strings.Cut(key, "/")
	switch {
	case !strings.Contains(key, "/"):
		return ""
	case key == "kubernetes.io/hostname" || key == "kubernetes.io/os" || key == "kubernetes.io/arch":
		return "the kubelet sets it"
	case prefix == "node-role.kubernetes.io":
		return "roles come from the pool's roles"
	case within(prefix, "node-restriction.kubernetes.io"):
		return "a node may not set it on itself"
	case within(prefix, "kubelet.kubernetes.io"), within(prefix, "node.kubernetes.io"),
		key == "topology.kubernetes.io/zone", key == "topology.kubernetes.io/region":
		return ""
	case within(prefix, "kubernetes.io"), within(prefix, "k8s.io"):
		return "it belongs to Kubernetes"
	}
	return ""
}

func within(domain, zone string) bool { return domain == zone || strings.HasSuffix(domain, "."+zone) }

func (k *checker) taints(path string, in []v1alpha1.Taint, p Pool, pools int) []Taint {
	var out []Taint
	seen := map[string]string{}
	roles := p.Roles
	if len(roles) == 0 {
		roles = DefaultRoles(pools)
	}
	for i, t := range in {
		at := Element(path, i)
		out = append(out, Taint(t))
		switch {
		case !k.out.Said(at + ".key"):
			k.missing(at, "key", "")
		case !isQualified(t.Key):
			k.say(at+".key", qualifiedHint, "%s is not the key of a taint", show(t.Key))
		case t.Key == TaintControlPlane && slices.Contains(roles, ControlPlane):
		case strings.HasPrefix(t.Key, "node-role.kubernetes.io/") || strings.HasPrefix(t.Key, "node.kubernetes.io/"):
			k.say(at+".key", "use a prefix of your own, such as example.org/", "taint %s is reserved for Kubernetes", t.Key)
		}
		if !isLabelValue(t.Value) {
			k.say(at+".value", "at most 63 letters, digits, dashes, dots and underscores", "%s is not the value of a taint", show(t.Value))
		}
		if !k.out.Said(at + ".effect") {
			k.missing(at, "effect", "NoSchedule, PreferNoSchedule or NoExecute")
		} else {
			k.oneOf(at+".effect", "effect", t.Effect, "NoSchedule", "PreferNoSchedule", "NoExecute")
		}
		unique(k, at, t.Key+":"+t.Effect, at, seen)
	}
	return out
}
