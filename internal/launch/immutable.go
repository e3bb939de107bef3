// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"

	"github.com/slipway-project/slipway/internal/core/config"
)

// immutable refuses a spec that changes what a cluster cannot change once it exists.
func (u *up) immutable() error {
	text, err := os.ReadFile(u.specFile(u.cluster.Name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // a new cluster
	}
	if err != nil {
		return fmt.Errorf("read the kept spec: %w", err)
	}
	version, err := u.keptVersion(u.cluster.Name)
	if err != nil {
		return fmt.Errorf("read the kept version: %w", err)
	}
	old, err := complete(u.specFile(u.cluster.Name), text, Source{Name: u.cluster.Name, Version: version})
	if err != nil {
		return fmt.Errorf("read the kept spec: %w", err)
	}
	old.Config = keeping(old.Config, u.machines)
	u.gone = missing(old.Config, u.cluster.Config)
	if changes := frozen(old.Config, u.cluster.Config.Keeping(indexes(old.Config))); len(changes) > 0 {
		return &Error{InvalidSpec, fmt.Errorf("cluster %s exists, and this cannot be changed in it:\n%s\nundo the change, or make a new cluster: slipway down --name %s",
			u.cluster.Name, strings.Join(changes, "\n"), u.cluster.Name)}
	}
	return nil
}

// indexes are the shares that the nodes of a spec have: those that are there keep theirs when others come before them.
func indexes(c config.Cluster) map[string]int {
	have := map[string]int{}
	for _, p := range c.Pools {
		for _, n := range p.Nodes {
			have[n.Name] = n.Index
		}
	}
	return have
}

func frozen(old, now config.Cluster) []string {
	var out []string
	for _, f := range []struct{ path, old, now string }{
		{"spec.networking.podCIDR", old.PodCIDR.String(), now.PodCIDR.String()},
		{"spec.networking.nodePodPrefix", fmt.Sprint(old.NodePodPrefix), fmt.Sprint(now.NodePodPrefix)},
		{"spec.networking.serviceCIDR", old.ServiceCIDR.String(), now.ServiceCIDR.String()},
		{"spec.networking.clusterDomain", old.ClusterDomain, now.ClusterDomain},
		{"spec.networking.dnsAddress", old.DNSAddress.String(), now.DNSAddress.String()},
		{"spec.controlPlane.form", old.Form, now.Form},
		{"spec.kubernetesVersion", old.Minor, now.Minor},
	} {
		if f.old != f.now {
			out = append(out, fmt.Sprintf("  %s: %s, was %s", f.path, f.now, f.old))
		}
	}
	return append(append(out, moved(old, now)...), frozenFlags(old, now)...)
}

// moved tells of machines that would get another address: certificates, etcd's member list and the machine itself have the old one.
func moved(old, now config.Cluster) []string {
	had := map[string]netip.Addr{}
	for _, p := range old.Pools {
		for _, n := range p.Nodes {
			had[n.Name] = address(n)
		}
	}
	var out []string
	for _, p := range now.Pools {
		for _, n := range p.Nodes {
			if was, ok := had[n.Name]; ok && was != address(n) {
				out = append(out, fmt.Sprintf("  spec.pools: machine %s: address %s, was %s", n.Name, address(n), was))
			}
		}
	}
	return out
}

func address(n config.NodeName) netip.Addr {
	if n.Address.IsValid() {
		return n.Address
	}
	return usual(n.Index)
}

// missing names the machines that the new configuration does not have. A renamed pool gives its machines other names: the old
// ones would run on, beside new ones with their addresses.
func missing(old, now config.Cluster) []string {
	keep := map[string]bool{}
	for _, p := range now.Pools {
		for _, n := range p.Nodes {
			keep[n.Name] = true
		}
	}
	var gone []string
	for _, p := range old.Pools {
		for _, n := range p.Nodes {
			if !keep[n.Name] {
				gone = append(gone, n.Name)
			}
		}
	}
	return gone
}
