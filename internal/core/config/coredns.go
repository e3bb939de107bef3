// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strings"
)

// corefile is CoreDNS' usual one. No lameduck: it only delays the end of a pod that gets no more queries.
const corefile = `.:53 {
    errors
    health :8080
    ready :8181
    kubernetes DOMAIN in-addr.arpa ip6.arpa {
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 30
    }
    prometheus :9153
    forward . /etc/resolv.conf {
        max_concurrent 1000
    }
    cache 30
    loop
    reload
    loadbalance
}
`

func (m *maker) coreDNS() {
	s, c := m.spec, m.out
	replicas, origin := 2, from("several machines")
	if len(c.nodes()) == 1 {
		replicas, origin = 1, from("a single machine")
	}
	at := "components.coredns."
	c.CoreDNS.Replicas = choose(m, at+"replicas", s.CoreDNS.Replicas, replicas, origin)
	text := strings.Replace(corefile, "DOMAIN", c.ClusterDomain, 1)
	c.CoreDNS.Corefile = choose(m, at+"corefile", s.CoreDNS.Corefile, text, from("networking.clusterDomain"))
	for _, a := range s.AddOns {
		c.AddOns = append(c.AddOns, AddOn(a))
	}
	m.origin("addOns", len(s.AddOns) > 0, std(""))
}

// choose takes what the user said if it differs from what would be there anyway, and records where it comes from.
func choose[T comparable](m *maker, path string, said, otherwise T, o Origin) T {
	var none T
	user := m.spec.Said("spec."+path) && said != none && said != otherwise
	m.origin(path, user, o)
	if user {
		return said
	}
	return otherwise
}

// origin records the user's place, or o.
func (m *maker) origin(path string, user bool, o Origin) {
	if user {
		o = Origin{From: User, Note: m.spec.Where("spec." + path)}
	}
	m.out.Origins[path] = o
}
