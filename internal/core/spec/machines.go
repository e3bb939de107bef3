// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

const (
	clusterNodes = 5000 // Kubernetes' own limit
	maxHostname  = 63
)

// taken holds what must be unique over all pools, and which field has it.
type taken struct {
	pools, names map[string]string
	addresses    map[netip.Addr]string
}

func (k *checker) pools() {
	const path = "spec.pools"
	pools := k.out.Pools
	if k.out.IsSet(path) && len(pools) == 0 {
		k.say(path, "remove the field for one machine that is control plane and worker", "is empty")
	}
	seen := taken{pools: map[string]string{}, names: map[string]string{}, addresses: map[netip.Addr]string{}}
	total := 0
	for i := range pools {
		at, p := Element(path, i), &pools[i]
		k.uniqueLabel(at, p.Name, seen.pools)
		k.roles(at, p.Roles)
		k.machines(at, p, seen)
		k.count(at, p)
		k.labels(at+".labels", p.Labels)
		k.machineLabels(at+".machineLabels", *p)
		k.taints(at+".taints", *p)
		k.replacement(at+".replacement", *p)
		total += MachineCount(*p)
	}
	k.generatedNames(seen)
	if room := k.maxNodes(); room > 0 && total > room {
		k.say(k.firstSet(networking+".nodePodPrefix", networking+".podCIDR", path), "choose a larger podCIDR or a longer nodePodPrefix",
			"the pod CIDR has room for %d nodes, and the spec has %d", room, total)
	}
	if total > clusterNodes {
		k.say(path, "make several clusters", "%d machines exceed Kubernetes' limit of %d", total, clusterNodes)
	}
	k.quorums()
}

func (k *checker) replacement(path string, p Pool) {
	if p.Replacement == "" || !k.oneOf(path, "replacement", p.Replacement, Approved, ByAddress) {
		return
	}
	if p.Replacement == ByAddress && (hasRole(p, len(k.out.Pools), RoleControlPlane) || hasRole(p, len(k.out.Pools), RoleEtcd)) {
		k.say(path, "use it for a pool of workers only", "with the address alone, a machine would become a control plane and receive the keys of all CAs")
	}
}

func (k *checker) roles(at string, roles []string) {
	seen := map[string]bool{}
	for i, r := range roles {
		path := Element(at+".roles", i)
		if !k.oneOf(path, "role", r, RoleControlPlane, RoleWorker, RoleEtcd) {
			k.unknownRole = true
		}
		if seen[r] {
			k.say(path, "remove one", "%s is given twice", show(r))
		}
		seen[r] = true
	}
	if k.out.IsSet(at+".roles") && len(roles) == 0 {
		k.say(at+".roles", "remove the field to use the default", "is empty")
	}
}

func (k *checker) count(at string, p *Pool) {
	if !k.out.IsSet(at + ".count") {
		return
	}
	switch {
	case p.Count < 1 || p.Count > clusterNodes:
		k.say(at+".count", fmt.Sprintf("choose 1 to %d, or remove the pool", clusterNodes), "%d is not a valid number of machines", p.Count)
		p.Count = 0
	case len(p.Machines) > 0 && len(p.Machines) != p.Count:
		k.say(at+".count", "remove count: it is the number of machines listed", "%d, but %d machines are listed", p.Count, len(p.Machines))
	}
}

func (k *checker) machines(at string, p *Pool, seen taken) {
	pods, services := k.ranges()
	for i := range p.Machines {
		path, m := Element(at+".machines", i), &p.Machines[i]
		k.labels(path+".labels", m.Labels)
		switch {
		case !k.out.IsSet(path + ".name"):
			k.missing(path, "name", "")
		case !isDomain(m.Name) || len(m.Name) > maxHostname:
			k.say(path+".name", labelHint, "%s is not a host name", show(m.Name))
		case isSharedName(m.Name):
			k.say(path+".name", "choose another", "%s does not name one machine: a certificate for it would be valid for other hosts too", show(m.Name))
		default:
			unique(k, path+".name", m.Name, path, seen.names)
		}
		if !k.out.IsSet(path + ".address") {
			k.missing(path, "address", "")
			continue
		}
		if !m.Address.IsValid() || !k.address(path+".address", &m.Address) {
			continue
		}
		unique(k, path+".address", m.Address, path, seen.addresses)
		if pods.Contains(m.Address) {
			k.say(path+".address", "choose another range for the cluster", "%s is in podCIDR %s", m.Address, pods)
		}
		if services.Contains(m.Address) {
			k.say(path+".address", "choose another range for the cluster", "%s is in serviceCIDR %s", m.Address, services)
		}
	}
}

// isSharedName reports whether clients expect something else than this machine under the name.
func isSharedName(name string) bool {
	first, rest, _ := strings.Cut(name, ".")
	return first == "localhost" || first == "kubernetes" && (rest == "" || rest == "default" || strings.HasPrefix(rest, "default."))
}

// machineLabels checks the labels of single machines that are not listed.
func (k *checker) machineLabels(at string, p Pool) {
	var known []string
	for n := range MachineCount(p) {
		known = append(known, MachineName(k.out.Name, p, n))
	}
	for _, name := range slices.Sorted(maps.Keys(p.MachineLabels)) {
		here := Child(at, name)
		switch {
		case len(p.Machines) > 0:
			k.say(here, "move them to the machine: machines: [{name: "+clip(name)+", labels: …}]", "the pool lists its machines")
		case !slices.Contains(known, name):
			hint := "the pool has " + known[0]
			if len(known) > 1 {
				hint += " to " + known[len(known)-1]
			}
			k.say(here, hint, "the pool has no machine %s", show(name))
		}
		k.labels(here, p.MachineLabels[name])
	}
}

// generatedNames checks the names of machines that are named after their pool.
func (k *checker) generatedNames(seen taken) {
	for i, p := range k.out.Pools {
		at := Element("spec.pools", i)
		if len(p.Machines) > 0 || !isLabel(p.Name) {
			continue
		}
		for n := range MachineCount(p) {
			name := MachineName(k.out.Name, p, n)
			if len(name) > maxHostname {
				k.say(at+".name", "shorten the pool's or the cluster's name", "the machine's name %s would be longer than %d characters", name, maxHostname)
				break
			}
			if other, ok := seen.names[name]; ok {
				k.say(at+".name", "rename the pool or that machine", "the machine's name %s is already used by %s", name, other)
			}
		}
	}
}

// quorums: etcd decides by majority, so an even number of members tolerates no more failures than one member less.
func (k *checker) quorums() {
	pools := k.out.Pools
	if len(pools) == 0 || k.above["spec.pools"] || k.unknownRole {
		return // what was refused may have been a control plane
	}
	controlPlanes, members, withoutEtcd := 0, 0, 0
	for _, p := range pools {
		isControlPlane, isMember := hasRole(p, len(pools), RoleControlPlane), hasRole(p, len(pools), RoleEtcd)
		if isControlPlane {
			controlPlanes += MachineCount(p)
		}
		if isMember {
			members += MachineCount(p)
		} else if isControlPlane {
			withoutEtcd += MachineCount(p)
		}
	}
	odd := func(what string, n int) {
		switch {
		case n > 7:
			k.say("spec.pools", "choose 1, 3, 5 or 7", "%d %s: every write waits for a majority, so more than 7 only make it slower", n, what)
		case n%2 == 0:
			k.say("spec.pools", "choose 1, 3, 5 or 7", "%d %s tolerate no more failures than %d", n, what, n-1)
		}
	}
	if controlPlanes == 0 {
		k.say("spec.pools", "give one pool the role control-plane", "no pool is a control plane")
	} else {
		odd("control planes", controlPlanes)
	}
	if members == 0 || members == controlPlanes && withoutEtcd == 0 {
		return
	}
	odd("etcd members", members)
	for i, p := range pools {
		if withoutEtcd > 0 && hasRole(p, len(pools), RoleEtcd) && len(p.Machines) == 0 {
			k.say(Element("spec.pools", i), "list machines with their addresses", "API servers without an etcd of their own need the addresses of the etcd machines")
		}
	}
}

func (k *checker) labels(path string, labels map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		at := Child(path, key)
		if !isQualified(key) {
			k.say(at, qualifiedHint, "%s is not the key of a label", show(key))
			continue
		}
		if !isLabelValue(labels[key]) {
			k.say(at, valueHint, "%s is not the value of a label", show(labels[key]))
		}
		if why := reservedLabel(key); why != "" {
			k.say(at, "use a prefix of your own, such as example.org/", "label %s is reserved: %s", key, why)
		}
	}
}

// reservedLabel returns why a kubelet may not set a label on its own node (the kubelet's flag check and NodeRestriction).
func reservedLabel(key string) string {
	prefix, _, qualified := strings.Cut(key, "/")
	within := func(zone string) bool { return prefix == zone || strings.HasSuffix(prefix, "."+zone) }
	switch {
	case !qualified:
		return ""
	case key == "kubernetes.io/hostname" || key == "kubernetes.io/os" || key == "kubernetes.io/arch":
		return "the kubelet sets it"
	case prefix == "node-role.kubernetes.io":
		return "it follows from the pool's roles"
	case within("node-restriction.kubernetes.io"):
		return "a node may not set it on itself"
	case within("kubelet.kubernetes.io"), within("node.kubernetes.io"),
		key == "topology.kubernetes.io/zone", key == "topology.kubernetes.io/region":
		return ""
	case within("kubernetes.io"), within("k8s.io"):
		return "it belongs to Kubernetes"
	}
	return ""
}

func (k *checker) taints(path string, p Pool) {
	seen := map[string]string{}
	for i, t := range p.Taints {
		at := Element(path, i)
		switch {
		case !k.out.IsSet(at + ".key"):
			k.missing(at, "key", "")
		case !isQualified(t.Key):
			k.say(at+".key", qualifiedHint, "%s is not the key of a taint", show(t.Key))
		case t.Key == TaintControlPlane && hasRole(p, len(k.out.Pools), RoleControlPlane):
		case strings.HasPrefix(t.Key, "node-role.kubernetes.io/") || strings.HasPrefix(t.Key, "node.kubernetes.io/"):
			k.say(at+".key", "use a prefix of your own, such as example.org/", "taint %s is reserved for Kubernetes", t.Key)
		}
		if !isLabelValue(t.Value) {
			k.say(at+".value", valueHint, "%s is not the value of a taint", show(t.Value))
		}
		if !k.out.IsSet(at + ".effect") {
			k.missing(at, "effect", "NoSchedule, PreferNoSchedule or NoExecute")
		} else {
			k.oneOf(at+".effect", "effect", t.Effect, "NoSchedule", "PreferNoSchedule", "NoExecute")
		}
		unique(k, at, t.Key+":"+t.Effect, at, seen)
	}
}

// ssh checks all SSH settings and gives each machine the cluster's where it has none of its own.
func (k *checker) ssh() {
	all := k.out.SSH
	k.sshFields("spec.ssh", all)
	for i, p := range k.out.Pools {
		for j := range p.Machines {
			m := &p.Machines[j].SSH
			k.sshFields(Element(Element("spec.pools", i)+".machines", j)+".ssh", *m)
			*m = SSH{
				User: cmp.Or(m.User, all.User), Port: cmp.Or(m.Port, all.Port), IdentityFile: cmp.Or(m.IdentityFile, all.IdentityFile),
				Jump: cmp.Or(m.Jump, all.Jump), HostKey: cmp.Or(m.HostKey, all.HostKey),
			}
		}
	}
}

func (k *checker) sshFields(at string, in SSH) {
	if k.out.IsSet(at+".user") && !isUser(in.User) {
		k.say(at+".user", "write a user such as root", "%s is not a user name", show(in.User))
	}
	if k.out.IsSet(at+".port") && (in.Port < 1 || in.Port > 65535) {
		k.say(at+".port", "choose 1 to 65535", "%d is not a port", in.Port)
	}
	if k.out.IsSet(at+".identityFile") && !strings.HasPrefix(in.IdentityFile, "/") && !strings.HasPrefix(in.IdentityFile, "~/") {
		k.say(at+".identityFile", "write a path that begins with / or ~/", "%s depends on the current directory", show(in.IdentityFile))
	}
	if j := in.Jump; j != (Jump{}) && (!isDomain(strings.ToLower(j.Host)) || j.User != "" && !isUser(j.User)) {
		k.say(at+".jump", "write USER@HOST:PORT, HOST:PORT, USER@HOST or HOST", "%s is not a jump host", show(j.String()))
	}
	if k.out.IsSet(at+".hostKey") && !isHostKey(in.HostKey) {
		k.say(at+".hostKey", `write "TYPE BASE64" as in a .pub file, or SHA256:… as ssh-keygen -lf prints it`, "%s is neither a public key nor a fingerprint", show(in.HostKey))
	}
}

// isHostKey checks the form only.
func isHostKey(s string) bool {
	if hash, ok := strings.CutPrefix(s, "SHA256:"); ok {
		raw, err := base64.RawStdEncoding.DecodeString(hash)
		return err == nil && len(raw) == 32
	}
	f := strings.Fields(s)
	if len(f) < 2 || !strings.HasPrefix(f[0], "ssh-") && !strings.HasPrefix(f[0], "ecdsa-") && !strings.HasPrefix(f[0], "sk-") {
		return false
	}
	raw, err := base64.StdEncoding.DecodeString(f[1])
	return err == nil && len(raw) > 4+len(f[0]) && string(raw[4:4+len(f[0])]) == f[0]
}
