// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/core/wait"
)

var nameForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// ValidName tells whether this can be the name of a node. Clients look for others under two names: a node's certificates would be
// good for them.
func ValidName(name string) bool {
	return nameForm.MatchString(name) && name != "kubernetes" && name != "localhost"
}

// decision is one case with all that is known of it.
type decision struct {
	req     Request
	records Records
	token   *Token
	policy  Policy
	now     time.Time
}

// Decide judges a request. token is the one that the evidence names, nil where there is none. Who has a record gets that,
// always again, whatever token it shows; nothing but a record or a token opens the door.
func Decide(req Request, r Records, token *Token, p Policy, now time.Time) Verdict {
	req.Address = req.Address.Unmap()
	if req.Evidence.TokenID == "" || token != nil && token.ID != req.Evidence.TokenID {
		token = nil // it was not proven
	}
	d := decision{req, r, token, p, now.UTC()} // as it comes back from JSON: records are compared whole
	if !req.Key.Valid() {
		return refuse(BadKey, "%.80q is not the pin of a key", req.Key)
	}
	if n, ok := r.ByKey(req.Key); ok {
		return d.known(n)
	}
	if r.removedKey(req.Key) && !d.invitesBack() {
		return refuse(KeyRemoved, "the machine was removed from the cluster: make a token for its key to let it in again")
	}
	if n, ok := r.first(func(n *Node) bool { return n.PendingKey == req.Key }); ok && !d.elsewhere(n) {
		return d.waits(n, false)
	}
	switch {
	case token != nil:
		return d.newcomer()
	case req.Evidence.TokenID != "":
		return refuse(TokenUnknown, "there is no token %.40q", req.Evidence.TokenID)
	}
	if n, ok := r.first(d.atItsAddress); ok {
		return d.replaces(n)
	}
	return refuse(KeyUnknown, "no node has this key, and the machine shows no token")
}

// invitesBack: somebody wants this very machine, after it was removed. A token that it has used before says nothing of that.
func (d decision) invitesBack() bool {
	return d.token != nil && d.token.Key == d.req.Key && d.token.UsedBy == ""
}

// elsewhere: the machine waits for one name, and somebody has since given it a way to another.
func (d decision) elsewhere(n Node) bool {
	return d.token != nil && d.token.UsedBy == "" && d.token.Node != n.Name
}

func (d decision) known(n Node) Verdict {
	if n.Removing {
		return refuse(NodeRemoving, "node %s is being removed", n.Name)
	}
	if d.isElsewhere(n) {
		return d.inUse(n)
	}
	return d.admit(n)
}

// isElsewhere: a worker's key is shown at another address than the one where its machine was last, and nobody knows that machine to
// be gone from there. One whose address changed comes back; a copy of its disk does not get in beside it.
func (d decision) isElsewhere(n Node) bool {
	return !n.JoinedAt.IsZero() && n.Address.IsValid() && n.Address != d.req.Address && d.req.Gone != n.Address &&
		!d.policy.Pools[n.Pool].ControlPlane
}

// inUse remembers where the key was shown, for whoever may approve it. A second place has to wait until the first one is silent.
func (d decision) inUse(n Node) Verdict {
	if no := d.objection(n); no != nil {
		return Verdict{Refusal: no}
	}
	v := refuse(KeyInUse, "node %s is alive at %s, and its key is shown at %s: a copy of its disk? Switch one of the two off; if this is the one that is wanted, slipway node approve %s",
		n.Name, n.Address, d.req.Address, n.Name)
	if fresh := n.AsksElsewhere(d.now); !fresh || n.Elsewhere == d.req.Address && !d.now.Before(n.ElsewhereAt.Add(MaxTTL/3)) {
		n.Elsewhere, n.ElsewhereAt = d.req.Address, d.now
		v.Node = n
	}
	return v
}

// atItsAddress: the place may go to whoever comes from its address, which a connection that stands has proven. That is as good as the
// network in which the addresses are, which is why the spec has to say so.
func (d decision) atItsAddress(n *Node) bool {
	pool := d.policy.Pools[n.Pool]
	return n.Address.IsValid() && n.Address == d.req.Address && pool.ByAddress && !pool.ControlPlane
}

// replaces puts a machine into the place of one that nobody hears from any more.
func (d decision) replaces(n Node) Verdict {
	switch {
	case n.Removing:
		return refuse(NodeRemoving, "node %s is being removed", n.Name)
	case n.Key != "" && d.req.Gone != n.Address:
		return refuse(NodeAlive, "node %s with another key is alive at %s, or nobody knows that it is not; another machine may take its place when it has been silent for a while",
			n.Name, n.Address)
	}
	n.Key, n.JoinedAt = d.req.Key, time.Time{}
	n.Elsewhere, n.ElsewhereAt, n.PendingKey, n.PendingAt = netip.Addr{}, time.Time{}, "", time.Time{}
	return d.admit(n)
}

// newcomer is a machine without a record but with a token.
func (d decision) newcomer() Verdict {
	t := d.token
	switch {
	case t.Key != "" && t.Key != d.req.Key:
		return refuse(TokenOtherKey, "token %s is for the machine with key %s", t.ID, t.Key)
	case t.UsedBy != "" && t.UsedBy != d.req.Key:
		return refuse(TokenUsed, "token %s was used by the machine with key %s", t.ID, t.UsedBy)
	case !d.now.Before(t.Expires):
		return refuse(TokenExpired, "token %s expired at %s", t.ID, t.Expires.UTC().Format(time.RFC3339))
	case t.Expires.After(d.now.Add(MaxTTL + clocksApart)):
		return refuse(TokenClock, "token %s expires at %s, which is more than %s from now, %s: this control plane's clock is slow, or that of the one that made it is fast",
			t.ID, t.Expires.UTC().Format(time.RFC3339), MaxTTL, d.now.Format(time.RFC3339))
	}
	if _, ok := d.policy.Pools[t.Pool]; !ok {
		return refuse(PoolUnknown, "token %s is for pool %q, which the spec does not have", t.ID, t.Pool)
	}
	if t.Node == "" {
		return d.create(d.freeName(t.Pool))
	}
	n, ok := d.records.Node(t.Node)
	switch {
	case !ok:
		return d.create(t.Node)
	case n.Pool != t.Pool:
		return refuse(PoolOther, "token %s lets into pool %q, and node %s is in pool %q", t.ID, t.Pool, n.Name, n.Pool)
	case n.Removing:
		return refuse(NodeRemoving, "node %s is being removed", n.Name)
	case n.Key == "":
		n.Key = d.req.Key
		return d.admit(n)
	}
	return d.waits(n, true)
}

// create makes a record. Its share comes from the top of the pod range: the spec's own machines count from the bottom.
func (d decision) create(name string) Verdict {
	if !ValidName(name) {
		return refuse(NameInvalid, "%.80q cannot be the name of a node", name)
	}
	index, share, ok := d.freeShare()
	if !ok {
		return refuse(SharesExhausted, "all %d shares of the pod range %s are given", Shares(d.policy.PodCIDR, d.policy.NodePodPrefix), d.policy.PodCIDR)
	}
	return d.admit(Node{Name: name, Pool: d.token.Pool, Index: index, PodCIDR: share, Key: d.req.Key})
}

// admit is the end of every way in: what holds for whoever comes, and what the record learns.
func (d decision) admit(n Node) Verdict {
	if no := d.objection(n); no != nil {
		return Verdict{Refusal: no}
	}
	n.Address, n.Facts, n.Kubernetes = d.req.Address, d.req.Facts, d.req.Kubernetes
	if n.Kubernetes == "" {
		n.Kubernetes = d.policy.APIServer // it will be given that
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

// waits is for a machine that wants a name that another machine has. fresh: it comes with a token.
func (d decision) waits(n Node, fresh bool) Verdict {
	if n.Removing {
		return refuse(NodeRemoving, "node %s is being removed", n.Name)
	}
	if no := d.objection(n); no != nil {
		return Verdict{Refusal: no}
	}
	if fresh && n.PendingKey != d.req.Key {
		if n.PendingKey != "" && d.now.Before(n.PendingAt.Add(MaxTTL)) {
			return refuse(NameContested, "the machine with key %s waits for the name %s already", n.PendingKey, n.Name)
		}
		n.PendingKey, n.PendingAt = d.req.Key, d.now
	}
	return Verdict{Node: n, UseToken: fresh, Wait: &wait.For{
		What: "approval of node " + n.Name + ", which had another key before", Who: "slipway node approve " + n.Name, Since: n.PendingAt,
	}}
}

// freeName is the lowest number that no machine of the pool has or had.
func (d decision) freeName(pool string) string {
	prefix := d.policy.Cluster + "-" + pool + "-"
	used := make([]bool, len(d.records.Nodes)+len(d.records.Removed)+1) // one of these is free
	mark := func(name string) {
		if text, ok := strings.CutPrefix(name, prefix); ok {
			if n, err := strconv.ParseUint(text, 10, 32); err == nil && n < uint64(len(used)) {
				used[n] = true // "01" counts as 1, which keeps alike names apart
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

func refuse(why Reason, format string, args ...any) Verdict {
	return Verdict{Refusal: &Refusal{why, fmt.Sprintf(format, args...)}}
}
