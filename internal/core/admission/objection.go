// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/slipway-project/slipway/internal/core/catalog"
)

// objection is what keeps a machine out that has a right to be n.
func (d decision) objection(n Node) *Refusal {
	if claimed := d.req.ClaimedNode; claimed != "" && claimed != n.Name {
		return &Refusal{NameOther, fmt.Sprintf("the machine calls itself %.80q, its record says %s", claimed, n.Name)}
	}
	if no := versionGate(d.req.Kubernetes, d.policy.APIServer); no != nil {
		return no
	}
	return d.address(n)
}

func (d decision) address(n Node) *Refusal {
	a := d.req.Address
	switch {
	case !a.IsValid() || a.IsUnspecified() || a.IsMulticast() || a.Zone() != "":
		return &Refusal{AddressInvalid, fmt.Sprintf("%.60q cannot be the address of a machine", a.String())}
	case d.policy.PodCIDR.Contains(a):
		return &Refusal{AddressReserved, fmt.Sprintf("address %s lies in the pod range %s", a, d.policy.PodCIDR)}
	case d.policy.ServiceCIDR.Contains(a):
		return &Refusal{AddressReserved, fmt.Sprintf("address %s lies in the Service range %s", a, d.policy.ServiceCIDR)}
	case n.Address != a && !d.policy.Pools[n.Pool].ControlPlane && slices.Contains(d.policy.Reserved, a):
		return &Refusal{AddressReserved, fmt.Sprintf("address %s is one where clients look for the API", a)}
	case n.Address.IsValid() && n.Address != a && d.policy.Pools[n.Pool].ControlPlane:
		return &Refusal{AddressMoved, fmt.Sprintf("control plane %s has the address %s and comes from %s", n.Name, n.Address, a)}
	}
	if o, ok := d.records.first(func(o *Node) bool { return o.Address == a && o.Name != n.Name }); ok {
		return &Refusal{AddressTaken, fmt.Sprintf("address %s is that of node %s", a, o.Name)}
	}
	return nil
}

// freeShare is the highest share that no record has.
func (d decision) freeShare() (int, netip.Prefix, bool) {
	used := make([]bool, Shares(d.policy.PodCIDR, d.policy.NodePodPrefix))
	for i := range d.records.Nodes {
		if n := d.records.Nodes[i].Index; n >= 0 && n < len(used) {
			used[n] = true
		}
	}
	for n := len(used) - 1; n >= 0; n-- {
		if used[n] {
			continue
		}
		share, _ := Share(d.policy.PodCIDR, d.policy.NodePodPrefix, n)
		if _, taken := d.records.first(func(o *Node) bool { return o.PodCIDR.Overlaps(share) }); !taken {
			return n, share, true
		}
	}
	return 0, netip.Prefix{}, false
}

// versionGate: a kubelet is never newer than the API server, and at most three minors older.
func versionGate(machine, server string) *Refusal {
	if machine == "" {
		return nil
	}
	m, ok := parseVersion(machine)
	s, known := parseVersion(server)
	switch {
	case !ok:
		return &Refusal{VersionBad, fmt.Sprintf("%.40q is no version of Kubernetes", machine)}
	case !known:
		return &Refusal{VersionBad, fmt.Sprintf("the API server's version %.40q cannot be read: nothing can be compared with it", server)}
	case m[0] != s[0] && m[0] < s[0] || m[0] == s[0] && m[1]+catalog.MaxKubeletSkew < s[1]:
		return &Refusal{VersionOlder, fmt.Sprintf("the machine's Kubernetes %s is more than %d minors older than the API server's %s: give the machine a newer one", machine, catalog.MaxKubeletSkew, server)}
	case m[0] > s[0] || m[1] > s[1] || m[1] == s[1] && m[2] > s[2]:
		return &Refusal{VersionNewer, fmt.Sprintf("the machine's Kubernetes %s is newer than the API server's %s: upgrade the control planes first", machine, server)}
	}
	return nil
}

// parseVersion reads "v1.36.4" and "1.36.4-rc.1" as [1 36 4].
func parseVersion(text string) (v [3]int, ok bool) {
	if len(text) > 40 {
		return v, false
	}
	text, _, _ = strings.Cut(strings.TrimPrefix(text, "v"), "+")
	text, _, _ = strings.Cut(text, "-")
	parts := strings.Split(text, ".")
	if len(parts) != len(v) {
		return v, false
	}
	for i, p := range parts {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || p != strconv.FormatUint(n, 10) {
			return v, false
		}
		v[i] = int(n)
	}
	return v, true
}
