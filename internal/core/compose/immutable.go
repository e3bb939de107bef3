// SPDX-License-Identifier: Apache-2.0

package compose

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/spec"
)

// Immutable lists the changes from one configuration of a cluster to another that a running cluster cannot make, one line
// each. Both must have their final indexes and addresses: see [Indexes] and config.Cluster.Keeping.
func Immutable(old, now config.Cluster) []string {
	var out []string
	changed := func(path, was, is, note string) {
		if was != is {
			out = append(out, path+": "+is+", was "+was+note)
		}
	}
	changed("spec.networking.podCIDR", old.PodCIDR.String(), now.PodCIDR.String(), "")
	changed("spec.networking.nodePodPrefix", fmt.Sprint(old.NodePodPrefix), fmt.Sprint(now.NodePodPrefix), "")
	changed("spec.networking.serviceCIDR", old.ServiceCIDR.String(), now.ServiceCIDR.String(), "")
	changed("spec.networking.clusterDomain", old.ClusterDomain, now.ClusterDomain, "")
	changed("spec.networking.dnsAddress", old.DNSAddress.String(), now.DNSAddress.String(), "")
	changed("spec.controlPlane.form", old.Form, now.Form, "")
	changed("spec.kubernetesVersion", old.Minor, now.Minor, upgradeNote(old.Minor, now.Minor))

	had := map[string]netip.Addr{} // certificates, etcd's member list and the machine itself have the old address
	for _, n := range old.AllNodes() {
		had[n.Name] = n.Address
	}
	for _, n := range now.AllNodes() {
		if was, ok := had[n.Name]; ok && was != n.Address {
			out = append(out, fmt.Sprintf("spec.pools: machine %s: address %s, was %s", n.Name, n.Address, was))
		}
	}
	return append(out, immutableFlags(old, now)...)
}

// upgradeNote tells which minors may follow the old one.
func upgradeNote(old, now string) string {
	from, err := catalog.Find(old)
	if err != nil {
		return ""
	}
	if to, err := catalog.Find(now); err == nil && from.MayUpgradeTo(to) {
		return " (slipway cannot upgrade a running cluster yet)"
	}
	return fmt.Sprintf(" (only %s may follow %s)", strings.Join(from.NextMinors, " and "), old)
}

// immutableFlags are flags that tell where a cluster's data is and who it is: with another value a component would start
// without the data that it has, or reject what it has signed.
func immutableFlags(old, now config.Cluster) []string {
	var out []string
	for _, c := range []struct {
		name  string
		flags []string
	}{
		{"etcd", []string{"data-dir", "wal-dir", "name", "initial-cluster-token"}},
		{"apiserver", []string{"etcd-servers", "etcd-prefix", "service-account-issuer", "secure-port", "encryption-provider-config"}},
		{"kubelet", []string{"root-dir", "hostname-override"}},
	} {
		before, _ := old.ComponentOf(c.name)
		after, _ := now.ComponentOf(c.name)
		for _, f := range c.flags {
			path := spec.Child("spec.components."+c.name+".flags", f)
			if old.Origins[path].From != config.User && now.Origins[path].From != config.User {
				continue // what it is derived from is immutable itself
			}
			if was, is := before.Flags[f], after.Flags[f]; !slices.Equal(was, is) {
				out = append(out, fmt.Sprintf("%s: %s, was %s", path, flagText(is), flagText(was)))
			}
		}
	}
	return out
}

func flagText(values []string) string {
	if len(values) == 0 {
		return "not set"
	}
	return strings.Join(values, ",")
}

// Indexes returns the indexes of a configuration's nodes by name.
func Indexes(c config.Cluster) map[string]int {
	have := map[string]int{}
	for _, n := range c.AllNodes() {
		have[n.Name] = n.Index
	}
	return have
}

// Missing lists the machines that the new configuration does not have. A renamed pool gives its machines other names: the
// old ones would keep running next to new ones with their addresses.
func Missing(old, now config.Cluster) []string {
	keep := Indexes(now)
	var out []string
	for _, n := range old.AllNodes() {
		if _, ok := keep[n.Name]; !ok {
			out = append(out, n.Name)
		}
	}
	return out
}
