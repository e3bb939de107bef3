// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/core/pin"
)

// Records are all that the cluster knows of its machines. They are a value: what changes them returns others.
type Records struct {
	Nodes   []Node // sorted by name
	Removed []Removed
}

// Removed remembers a machine that was taken out, for ever: its certificates are good for a while yet, so neither does its key
// open the door again nor does another machine get its name by itself.
type Removed struct {
	Name string    `json:"name"`
	Key  pin.Pin   `json:"key,omitempty"` // empty: it never came, or a token for this very key has let it in again
	At   time.Time `json:"at"`
}

// Node finds a record by its name.
func (r Records) Node(name string) (Node, bool) {
	return r.first(func(n *Node) bool { return n.Name == name })
}

// AsksElsewhere tells whether the node's key was shown at another address lately.
func (n Node) AsksElsewhere(now time.Time) bool {
	return n.Elsewhere.IsValid() && now.Before(n.ElsewhereAt.Add(MaxTTL))
}

// ByKey finds the record of a machine.
func (r Records) ByKey(key pin.Pin) (Node, bool) {
	return r.first(func(n *Node) bool { return key != "" && n.Key == key })
}

func (r Records) first(match func(*Node) bool) (Node, bool) {
	for i := range r.Nodes { // not by value: records are large, and this is asked for every knock at the door
		if match(&r.Nodes[i]) {
			return r.Nodes[i], true
		}
	}
	return Node{}, false
}

func (r Records) removedKey(key pin.Pin) bool {
	return slices.ContainsFunc(r.Removed, func(x Removed) bool { return x.Key == key })
}

func (r Records) removedName(name string) bool {
	return slices.ContainsFunc(r.Removed, func(x Removed) bool { return x.Name == name })
}

// Put replaces the record of the same name, or adds one. It refuses what two records must not share, and a change of what
// never changes. A removed key that is put is removed no longer.
func (r Records) Put(n Node) (Records, error) {
	if err := r.check(n); err != nil {
		return r, err
	}
	return r.with(n), nil
}

func (r Records) check(n Node) error {
	for i := range r.Nodes {
		o := &r.Nodes[i]
		switch {
		case o.Name == n.Name:
			if o.Index != n.Index || o.PodCIDR != n.PodCIDR || o.Pool != n.Pool {
				return fmt.Errorf("node %s: pool, index and pod range of a record never change", n.Name)
			}
		case n.Key != "" && o.Key == n.Key:
			return fmt.Errorf("node %s: its key is that of node %s", n.Name, o.Name)
		case o.Index == n.Index:
			return fmt.Errorf("node %s: share %d of the pod range is that of node %s", n.Name, n.Index, o.Name)
		case o.PodCIDR.Overlaps(n.PodCIDR):
			return fmt.Errorf("node %s: its pod range %s overlaps that of node %s, %s", n.Name, n.PodCIDR, o.Name, o.PodCIDR)
		case n.Address.IsValid() && o.Address == n.Address:
			return fmt.Errorf("node %s: its address %s is that of node %s", n.Name, n.Address, o.Name)
		}
	}
	return nil
}

func (r Records) with(n Node) Records {
	out := Records{Nodes: slices.Clone(r.Nodes), Removed: r.Removed}
	i, found := slices.BinarySearchFunc(out.Nodes, n.Name, func(o Node, name string) int { return strings.Compare(o.Name, name) })
	if found {
		out.Nodes[i] = n
	} else {
		out.Nodes = slices.Insert(out.Nodes, i, n)
	}
	for i := range out.Nodes {
		if o := &out.Nodes[i]; o.Name != n.Name && o.PendingKey != "" && (o.PendingKey == n.Key || o.PendingKey == n.PendingKey) {
			o.PendingKey, o.PendingAt = "", time.Time{} // it waits no longer, or for another name
		}
	}
	back := func(x Removed) bool { return x.Key != "" && (x.Key == n.Key || x.Key == n.PendingKey) }
	if slices.ContainsFunc(out.Removed, back) {
		out.Removed = slices.Clone(out.Removed)
		for i := range out.Removed {
			if back(out.Removed[i]) {
				out.Removed[i].Key = "" // the name stays used
			}
		}
	}
	return out
}

// Remove takes a record out and remembers that it was.
func (r Records) Remove(name string, now time.Time) Records {
	n, ok := r.Node(name)
	if !ok {
		return r
	}
	out := Records{Nodes: slices.DeleteFunc(slices.Clone(r.Nodes), func(o Node) bool { return o.Name == name }), Removed: slices.Clone(r.Removed)}
	out.Removed = append(out.Removed, Removed{Name: name, Key: n.Key, At: now.UTC()})
	return out
}

// Replace is Put of a record whose key is another one now. The old one is out, as one that was removed.
func (r Records) Replace(n Node, now time.Time) (Records, error) {
	old, ok := r.Node(n.Name)
	out, err := r.Put(n)
	if err == nil && ok && old.Key != "" && old.Key != n.Key {
		out.Removed = append(slices.Clone(out.Removed), Removed{Name: n.Name, Key: old.Key, At: now.UTC()})
	}
	return out, err
}

// Approve lets the machine in that waits for the name. The one that had the name before is removed; or, where the same key is shown
// at two addresses, it is the other one's from now on.
func (r Records) Approve(name string, now time.Time) (Records, Node, error) {
	n, ok := r.Node(name)
	switch {
	case !ok:
		return r, Node{}, fmt.Errorf("there is no node %s", name)
	case n.Removing:
		return r, Node{}, fmt.Errorf("node %s is being removed", name)
	case n.PendingKey == "" && n.AsksElsewhere(now):
		n.Address, n.Elsewhere, n.ElsewhereAt = n.Elsewhere, netip.Addr{}, time.Time{}
		out, err := r.Put(n)
		return out, n, err
	case n.PendingKey == "":
		return r, Node{}, fmt.Errorf("no machine waits for the name %s", name)
	}
	n.Key, n.PendingKey, n.PendingAt, n.JoinedAt = n.PendingKey, "", time.Time{}, time.Time{}
	n.Elsewhere, n.ElsewhereAt = netip.Addr{}, time.Time{} // that was the other key
	out, err := r.Replace(n, now)
	if err != nil {
		return r, Node{}, err
	}
	return out, n, nil
}

// Share is the n-th part of the pod range; false where it has no such part.
func Share(pods netip.Prefix, bits, n int) (netip.Prefix, bool) {
	if n < 0 || n >= Shares(pods, bits) {
		return netip.Prefix{}, false
	}
	a := pods.Masked().Addr().AsSlice()
	for at, carry := bits, n; carry > 0 && at > 0; at-- { // adds n at the bit where the parts begin to differ
		if carry&1 == 1 {
			a[(at-1)/8] |= 1 << (7 - (at-1)%8)
		}
		carry >>= 1
	}
	addr, _ := netip.AddrFromSlice(a)
	return netip.PrefixFrom(addr, bits), true
}

// Shares is the number of parts.
func Shares(pods netip.Prefix, bits int) int {
	if !pods.IsValid() || bits < pods.Bits() || bits > pods.Addr().BitLen() {
		return 0
	}
	return 1 << min(bits-pods.Bits(), 16) // 16 is also what Kubernetes allows
}
