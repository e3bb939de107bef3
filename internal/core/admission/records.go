// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/core/pin"
)

// Records are all that the cluster knows about its machines. They are a value: methods that change them return a copy.
type Records struct {
	Nodes   []Node // sorted by name
	Removed []Removed
}

// Removed records a machine that was removed. It is kept forever: the machine's certificates stay valid for a while, so its
// key is not admitted again, and no other machine gets its name automatically.
type Removed struct {
	Name string    `json:"name"`
	Key  pin.Pin   `json:"key,omitempty"` // empty: no machine had joined, or a token for this very key has admitted it again
	At   time.Time `json:"at"`
}

// Node returns the record with this name.
func (r Records) Node(name string) (Node, bool) {
	return r.first(func(n *Node) bool { return n.Name == name })
}

// ByKey returns the record of the machine with this key.
func (r Records) ByKey(key pin.Pin) (Node, bool) {
	return r.first(func(n *Node) bool { return key != "" && n.Key == key })
}

func (r Records) first(match func(*Node) bool) (Node, bool) {
	for i := range r.Nodes { // by pointer: records are large, and every unauthenticated request causes this search
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

// Put replaces the record with the same name, or adds one. It is an error if two records would share a key, an address or pods'
// addresses, or if a record's pool, index or pod CIDR would change. A key that is put is not removed any more.
func (r Records) Put(n Node) (Records, error) {
	for i := range r.Nodes {
		o := &r.Nodes[i]
		switch {
		case o.Name == n.Name:
			if o.Index != n.Index || o.PodCIDR != n.PodCIDR || o.Pool != n.Pool {
				return r, fmt.Errorf("node %s: pool, index and pod CIDR of a record never change", n.Name)
			}
		case n.Key != "" && o.Key == n.Key:
			return r, fmt.Errorf("node %s: node %s has the same key", n.Name, o.Name)
		case o.Index == n.Index:
			return r, fmt.Errorf("node %s: node %s has the same index %d", n.Name, o.Name, n.Index)
		case o.PodCIDR.Overlaps(n.PodCIDR):
			return r, fmt.Errorf("node %s: its pod CIDR %s overlaps with %s of node %s", n.Name, n.PodCIDR, o.PodCIDR, o.Name)
		case n.Address.IsValid() && o.Address == n.Address:
			return r, fmt.Errorf("node %s: node %s has the same address %s", n.Name, o.Name, n.Address)
		}
	}
	return r.with(n), nil
}

// with is Put without the checks.
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
			o.PendingKey, o.PendingAt = "", time.Time{} // it no longer waits, or waits for another name
		}
	}
	readmitted := func(x Removed) bool { return x.Key != "" && (x.Key == n.Key || x.Key == n.PendingKey) }
	if slices.ContainsFunc(out.Removed, readmitted) {
		out.Removed = slices.Clone(out.Removed)
		for i := range out.Removed {
			if readmitted(out.Removed[i]) {
				out.Removed[i].Key = "" // the name stays used
			}
		}
	}
	return out
}

// Remove deletes a record and adds its name and key to Removed. It does nothing if there is no such record.
func (r Records) Remove(name string, now time.Time) Records {
	n, ok := r.Node(name)
	if !ok {
		return r
	}
	out := Records{Nodes: slices.DeleteFunc(slices.Clone(r.Nodes), func(o Node) bool { return o.Name == name }), Removed: slices.Clone(r.Removed)}
	out.Removed = append(out.Removed, Removed{Name: name, Key: n.Key, At: now.UTC()})
	return out
}

// Replace is Put, and adds the record's previous key, if it is another one, to Removed.
func (r Records) Replace(n Node, now time.Time) (Records, error) {
	old, ok := r.Node(n.Name)
	out, err := r.Put(n)
	if err == nil && ok && old.Key != "" && old.Key != n.Key {
		out.Removed = append(slices.Clone(out.Removed), Removed{Name: n.Name, Key: old.Key, At: now.UTC()})
	}
	return out, err
}

// Approve admits the machine that waits for the name. The machine that had the name before is removed. If no machine waits,
// but the node's key was used from a second address, the record gets that address.
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
	n.Elsewhere, n.ElsewhereAt = netip.Addr{}, time.Time{} // the second address was of the previous key
	out, err := r.Replace(n, now)
	if err != nil {
		return r, Node{}, err
	}
	return out, n, nil
}

// Register adds the nodes of the operator's spec: it creates missing records and fills in a key or an address that a record
// does not have yet. It never replaces a key, a pool or a pod CIDR, and never restores a removed node with the same key. If a
// record has another key, the machine with the spec's key waits for approval. A node that cannot be registered is part of the
// error and does not prevent the registration of the others.
func (r Records) Register(document []Node, now time.Time) (Records, error) {
	var errs []error
	for _, n := range document {
		out, err := r.register(n, now)
		if err != nil {
			errs = append(errs, fmt.Errorf("register %w", err))
			continue
		}
		r = out
	}
	return r, errors.Join(errs...)
}

func (r Records) register(n Node, now time.Time) (Records, error) {
	switch {
	case !ValidName(n.Name):
		return r, fmt.Errorf("node %.80q: this is not a valid node name", n.Name)
	case n.Key != "" && !n.Key.Valid():
		return r, fmt.Errorf("node %s: %.80q is not the pin of a key", n.Name, n.Key)
	}
	if r.removedKey(n.Key) && n.Key != "" {
		return r, nil
	}
	old, ok := r.Node(n.Name)
	if !ok {
		if r.removedName(n.Name) && n.Key == "" {
			return r, nil
		}
		return r.Put(Node{
			Name: n.Name, Pool: n.Pool, Index: n.Index, PodCIDR: n.PodCIDR, Address: n.Address.Unmap(), Key: n.Key,
			Kubernetes: n.Kubernetes, Facts: n.Facts, JoinedAt: n.JoinedAt.UTC(),
		})
	}
	filled := old
	if !filled.Address.IsValid() {
		filled.Address = n.Address.Unmap()
	}
	switch {
	case n.Key == "" || n.Key == old.Key || old.Removing:
	case old.Key == "":
		filled.Key = n.Key
	case old.PendingKey == "":
		if _, taken := r.first(func(o *Node) bool { return o.Key == n.Key || o.PendingKey == n.Key }); !taken {
			filled.PendingKey, filled.PendingAt = n.Key, now.UTC()
		}
	}
	if filled == old {
		return r, nil
	}
	return r.Put(filled)
}

// PodCIDR returns the n-th pod CIDR of a node, with a prefix of so many bits, in the cluster's pod CIDR. It reports false if
// there is none.
func PodCIDR(cluster netip.Prefix, bits, n int) (netip.Prefix, bool) {
	if n < 0 || n >= countPodCIDRs(cluster, bits) {
		return netip.Prefix{}, false
	}
	a := cluster.Masked().Addr().AsSlice()
	for at, carry := bits, n; carry > 0 && at > 0; at-- { // adds n to the last of the bits
		if carry&1 == 1 {
			a[(at-1)/8] |= 1 << (7 - (at-1)%8)
		}
		carry >>= 1
	}
	addr, _ := netip.AddrFromSlice(a)
	return netip.PrefixFrom(addr, bits), true
}

// countPodCIDRs returns how many nodes' pod CIDRs with a prefix of so many bits the cluster's pod CIDR has.
func countPodCIDRs(cluster netip.Prefix, bits int) int {
	if !cluster.IsValid() || bits < cluster.Bits() || bits > cluster.Addr().BitLen() {
		return 0
	}
	return 1 << min(bits-cluster.Bits(), 16) // 16 is also the limit of Kubernetes
}
