// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/core/wait"
)

// decision is one request with everything that is known about it.
type decision struct {
	req     Request
	records Records
	token   *Token
	policy  Policy
	now     time.Time
}

// Decide judges a request. token is the one that the evidence names, or nil. A machine that has a record always gets that
// record, whatever token it shows. A machine without a record needs a token, or the address of an unreachable machine in a
// pool that allows replacement by address.
func Decide(req Request, r Records, token *Token, p Policy, now time.Time) Verdict {
	req.Address = req.Address.Unmap()
	if req.Evidence.TokenID == "" || token != nil && token.ID != req.Evidence.TokenID {
		token = nil // not proven
	}
	d := decision{req, r, token, p, now.UTC()} // UTC, as times are after JSON: whole records are compared
	if !req.Key.Valid() {
		return refuse(BadKey, "%.80q is not the pin of a key", req.Key)
	}
	if n, ok := r.ByKey(req.Key); ok {
		switch {
		case n.Removing:
			return refuse(NodeRemoving, "node %s is being removed", n.Name)
		case d.isElsewhere(n):
			return d.inUse(n)
		}
		return d.admit(n)
	}
	if r.removedKey(req.Key) && !d.readmits() {
		return refuse(KeyRemoved, "the machine was removed from the cluster: create a token for its key to admit it again")
	}
	if n, ok := r.first(func(n *Node) bool { return n.PendingKey == req.Key }); ok && !d.hasTokenForOther(n) {
		return d.wait(n, false)
	}
	switch {
	case token != nil:
		return d.byToken()
	case req.Evidence.TokenID != "":
		return refuse(TokenUnknown, "there is no token %.40q", req.Evidence.TokenID)
	}
	if n, ok := r.first(d.mayReplace); ok {
		return d.replace(n)
	}
	return refuse(KeyUnknown, "no node has this key, and the machine has no token")
}

// readmits reports whether the token was created for this very key after the machine was removed. A token that the machine
// has used before its removal does not count.
func (d decision) readmits() bool {
	return d.token != nil && d.token.Key == d.req.Key && d.token.UsedBy == ""
}

// hasTokenForOther reports whether the machine, which waits for n's name, has a new token for another name.
func (d decision) hasTokenForOther(n Node) bool {
	return d.token != nil && d.token.UsedBy == "" && d.token.Node != n.Name
}

// isElsewhere reports whether a worker's key comes from another address than before although the machine at the previous
// address is not known to be unreachable. A machine whose address changed is admitted; a copy of its disk that runs at the
// same time is not.
func (d decision) isElsewhere(n Node) bool {
	return !n.JoinedAt.IsZero() && n.Address.IsValid() && n.Address != d.req.Address && d.req.Gone != n.Address &&
		!d.policy.Pools[n.Pool].ControlPlane
}

// inUse refuses a key that is in use at another address. It records the second address so that an operator can approve it.
// A third address is recorded only once the second has stopped asking.
func (d decision) inUse(n Node) Verdict {
	if refusal := d.objection(n); refusal != nil {
		return Verdict{Refusal: refusal}
	}
	v := refuse(KeyInUse, "node %s is reachable at %s, and its key was also used from %s, possibly by a copy of its disk: "+
		"switch off one of the two; to keep the one at %s, run slipway node approve %s",
		n.Name, n.Address, d.req.Address, d.req.Address, n.Name)
	// The time is updated every few minutes only, because each update is a write to the store.
	if recent := n.AsksElsewhere(d.now); !recent || n.Elsewhere == d.req.Address && !d.now.Before(n.ElsewhereAt.Add(MaxTTL/3)) {
		n.Elsewhere, n.ElsewhereAt = d.req.Address, d.now
		v.Node = n
	}
	return v
}

// mayReplace reports whether n may be given to a machine that connects from its address. The established connection proves
// the address. This is only as safe as the network, so the spec has to allow it per pool, and never for control planes.
func (d decision) mayReplace(n *Node) bool {
	pool := d.policy.Pools[n.Pool]
	return n.Address.IsValid() && n.Address == d.req.Address && pool.ByAddress && !pool.ControlPlane
}

// replace gives n to another machine if the previous one is unreachable.
func (d decision) replace(n Node) Verdict {
	switch {
	case n.Removing:
		return refuse(NodeRemoving, "node %s is being removed", n.Name)
	case n.Key != "" && d.req.Gone != n.Address:
		return refuse(NodeAlive, "node %s has another key and is reachable at %s, or its state is unknown: "+
			"another machine can replace it once it has been unreachable for a while", n.Name, n.Address)
	}
	n.Key, n.JoinedAt = d.req.Key, time.Time{}
	n.Elsewhere, n.ElsewhereAt, n.PendingKey, n.PendingAt = netip.Addr{}, time.Time{}, "", time.Time{}
	return d.admit(n)
}

// byToken judges a machine that has no record but has proven a token.
func (d decision) byToken() Verdict {
	t := d.token
	switch {
	case t.Key != "" && t.Key != d.req.Key:
		return refuse(TokenOtherKey, "token %s is for the machine with key %s", t.ID, t.Key)
	case t.UsedBy != "" && t.UsedBy != d.req.Key:
		return refuse(TokenUsed, "token %s was used by the machine with key %s", t.ID, t.UsedBy)
	case !d.now.Before(t.Expires):
		return refuse(TokenExpired, "token %s expired at %s", t.ID, t.Expires.UTC().Format(time.RFC3339))
	case t.Expires.After(d.now.Add(MaxTTL + maxClockSkew)):
		return refuse(TokenClock, "token %s expires at %s, more than %s after this control plane's time, %s: "+
			"its clock is slow, or the clock of the control plane that created the token is fast",
			t.ID, t.Expires.UTC().Format(time.RFC3339), MaxTTL, d.now.Format(time.RFC3339))
	}
	if _, ok := d.policy.Pools[t.Pool]; !ok {
		return refuse(PoolUnknown, "token %s is for pool %q, which is not in the spec", t.ID, t.Pool)
	}
	if t.Node == "" {
		return d.create(d.freeName(t.Pool))
	}
	n, ok := d.records.Node(t.Node)
	switch {
	case !ok:
		return d.create(t.Node)
	case n.Pool != t.Pool:
		return refuse(PoolOther, "token %s is for pool %q, and node %s is in pool %q", t.ID, t.Pool, n.Name, n.Pool)
	case n.Removing:
		return refuse(NodeRemoving, "node %s is being removed", n.Name)
	case n.Key == "":
		n.Key = d.req.Key
		return d.admit(n)
	}
	return d.wait(n, true)
}

// create makes a record for a new node.
func (d decision) create(name string) Verdict {
	if !ValidName(name) {
		return refuse(NameInvalid, "%.80q is not a valid node name", name)
	}
	index, pods, ok := d.freePodCIDR()
	if !ok {
		return refuse(PodCIDRsExhausted, "all %d node pod CIDRs in %s are in use", countPodCIDRs(d.policy.PodCIDR, d.policy.NodePodPrefix), d.policy.PodCIDR)
	}
	return d.admit(Node{Name: name, Pool: d.token.Pool, Index: index, PodCIDR: pods, Key: d.req.Key})
}

// admit gives the machine the record n, unless there is an objection. It updates what the machine reports in the record.
func (d decision) admit(n Node) Verdict {
	if refusal := d.objection(n); refusal != nil {
		return Verdict{Refusal: refusal}
	}
	n.Address, n.Facts, n.Kubernetes = d.req.Address, d.req.Facts, d.req.Kubernetes
	if n.Kubernetes == "" {
		n.Kubernetes = d.policy.APIServer // the machine will install this version
	}
	if n.Elsewhere == n.Address {
		n.Elsewhere, n.ElsewhereAt = netip.Addr{}, time.Time{}
	}
	if n.JoinedAt.IsZero() {
		n.JoinedAt = d.now
	}
	_, known := d.records.ByKey(d.req.Key)
	return Verdict{Node: n, UseToken: !known && d.token != nil}
}

// wait makes a machine wait for approval because another machine has the name. withToken: the request uses a token; otherwise
// the machine is pending already.
func (d decision) wait(n Node, withToken bool) Verdict {
	if n.Removing {
		return refuse(NodeRemoving, "node %s is being removed", n.Name)
	}
	if refusal := d.objection(n); refusal != nil {
		return Verdict{Refusal: refusal}
	}
	if withToken && n.PendingKey != d.req.Key {
		if n.PendingKey != "" && d.now.Before(n.PendingAt.Add(MaxTTL)) {
			return refuse(NameContested, "the machine with key %s already waits for the name %s", n.PendingKey, n.Name)
		}
		n.PendingKey, n.PendingAt = d.req.Key, d.now
	}
	return Verdict{Node: n, UseToken: withToken, Wait: &wait.For{
		What: "approval of node " + n.Name + ", which had another key before", Who: "slipway node approve " + n.Name, Since: n.PendingAt,
	}}
}

// freeName returns the name with the lowest number that no machine of the pool has or had.
func (d decision) freeName(pool string) string {
	prefix := d.policy.Cluster + "-" + pool + "-"
	used := make([]bool, len(d.records.Nodes)+len(d.records.Removed)+1) // one of these is free
	mark := func(name string) {
		if text, ok := strings.CutPrefix(name, prefix); ok {
			if n, err := strconv.ParseUint(text, 10, 32); err == nil && n < uint64(len(used)) {
				used[n] = true // "01" counts as 1, so that no two names look alike
			}
		}
	}
	for i := range d.records.Nodes {
		mark(d.records.Nodes[i].Name)
	}
	for i := range d.records.Removed {
		mark(d.records.Removed[i].Name)
	}
	return prefix + strconv.Itoa(slices.Index(used, false))
}

// freePodCIDR returns the highest pod CIDR that no record has. The machines of the spec count from the lowest.
func (d decision) freePodCIDR() (int, netip.Prefix, bool) {
	used := make([]bool, countPodCIDRs(d.policy.PodCIDR, d.policy.NodePodPrefix))
	for i := range d.records.Nodes {
		if n := d.records.Nodes[i].Index; n >= 0 && n < len(used) {
			used[n] = true
		}
	}
	for n := len(used) - 1; n >= 0; n-- {
		if used[n] {
			continue
		}
		pods, _ := PodCIDR(d.policy.PodCIDR, d.policy.NodePodPrefix, n)
		if _, taken := d.records.first(func(o *Node) bool { return o.PodCIDR.Overlaps(pods) }); !taken {
			return n, pods, true
		}
	}
	return 0, netip.Prefix{}, false
}

// objection returns why a machine that is entitled to the record n is refused all the same: because of its name, its version
// or its address.
func (d decision) objection(n Node) *Refusal {
	if claimed := d.req.ClaimedNode; claimed != "" && claimed != n.Name {
		return &Refusal{NameOther, fmt.Sprintf("the machine claims the name %.80q, but its record is for node %s", claimed, n.Name)}
	}
	if refusal := checkVersion(d.req.Kubernetes, d.policy.APIServer); refusal != nil {
		return refusal
	}
	a := d.req.Address
	switch {
	case !a.IsValid() || a.IsUnspecified() || a.IsMulticast() || a.Zone() != "":
		return &Refusal{AddressInvalid, fmt.Sprintf("%.60q is not a valid address of a machine", a.String())}
	case d.policy.PodCIDR.Contains(a):
		return &Refusal{AddressReserved, fmt.Sprintf("address %s is in the pod CIDR %s", a, d.policy.PodCIDR)}
	case d.policy.ServiceCIDR.Contains(a):
		return &Refusal{AddressReserved, fmt.Sprintf("address %s is in the service CIDR %s", a, d.policy.ServiceCIDR)}
	case n.Address != a && !d.policy.Pools[n.Pool].ControlPlane && slices.Contains(d.policy.Reserved, a):
		return &Refusal{AddressReserved, fmt.Sprintf("address %s is reserved: clients connect to the API there", a)}
	case n.Address.IsValid() && n.Address != a && d.policy.Pools[n.Pool].ControlPlane:
		return &Refusal{AddressMoved, fmt.Sprintf("control plane %s has the address %s and connects from %s", n.Name, n.Address, a)}
	}
	if o, ok := d.records.first(func(o *Node) bool { return o.Address == a && o.Name != n.Name }); ok {
		return &Refusal{AddressTaken, fmt.Sprintf("node %s has the address %s", o.Name, a)}
	}
	return nil
}

// checkVersion refuses a kubelet that is newer than the API server or more than catalog.MaxKubeletSkew minor versions older.
func checkVersion(machine, server string) *Refusal {
	if machine == "" {
		return nil
	}
	m, ok := parseVersion(machine)
	s, known := parseVersion(server)
	switch {
	case !ok:
		return &Refusal{VersionBad, fmt.Sprintf("%.40q is not a Kubernetes version", machine)}
	case !known:
		return &Refusal{VersionBad, fmt.Sprintf("the API server's version %.40q is not a Kubernetes version", server)}
	case m[0] != s[0] && m[0] < s[0] || m[0] == s[0] && m[1]+catalog.MaxKubeletSkew < s[1]:
		return &Refusal{VersionOlder, fmt.Sprintf("the machine's Kubernetes %s is more than %d minor versions older than the API server's %s: install a newer version on the machine",
			machine, catalog.MaxKubeletSkew, server)}
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

func refuse(why Reason, format string, args ...any) Verdict {
	return Verdict{Refusal: &Refusal{why, fmt.Sprintf(format, args...)}}
}
