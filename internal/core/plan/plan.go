// SPDX-License-Identifier: Apache-2.0

// Package plan is the vocabulary between deciding and doing: what one node must have ([Plan]), what it has ([State]), and
// the difference ([Step]). A plan is plain data, a versioned wire format, and free of secrets. The package knows nothing of
// Kubernetes or of the configuration that a plan came from, and never touches a machine.
//
// Read [Plan] and [Builder] first, then [Diff].
//
//	var b plan.Builder
//	key := b.Add(plan.Cert{Want: w})
//	b.Add(plan.Unit{Name: "etcd", …}, key)   // starts when the certificate has been observed ready
package plan

import "time"

// Version is the wire version of Plan that this code writes. A reader refuses any other.
const Version = 1

// Plan is everything that one node must have. Entries are in an order in which each comes after its needs.
type Plan struct {
	Version int     `json:"version"`
	Cluster string  `json:"cluster"`
	Node    string  `json:"node"`
	Release string  `json:"release"` // exact Kubernetes version, for people and for status
	Entries []Entry `json:"entries"`
}

// Entry is an item and its place in the graph.
type Entry struct {
	Ref   Ref   `json:"ref"`
	Item  Item  `json:"-"`
	Needs []Ref `json:"needs,omitempty"` // order and readiness: start when all of these have been observed ready
	// Deadline bounds one attempt to do the item, not the waiting for it; 0 means a minute.
	Deadline time.Duration `json:"deadline,omitempty"`
	// Turn names what only one machine of the cluster at a time may do: while the item runs, it is exchanged only in this machine's
	// turn. Empty: whenever it differs.
	Turn string `json:"turn,omitempty"`
}

// Ref points to an entry: "unit/etcd", "file//etc/kubernetes/audit-policy.yaml". Only a Builder or the decoder makes one.
type Ref struct{ id string }

func (r Ref) String() string { return r.id }

// IsZero reports whether the reference points nowhere.
func (r Ref) IsZero() bool { return r.id == "" }

// RefOf is the reference that an item has in every plan.
func RefOf(it Item) Ref { return Ref{string(it.Kind()) + "/" + it.Key()} }

// Find returns the entry with the given reference text.
func (p Plan) Find(ref string) (Entry, bool) {
	for _, e := range p.Entries {
		if e.Ref.id == ref {
			return e, true
		}
	}
	return Entry{}, false
}

// Process finds the entry of a component's process, whichever form it has: a unit, or a static pod.
func (p Plan) Process(name string) (Entry, bool) {
	for _, kind := range []Kind{KindUnit, KindStaticPod} {
		if e, ok := p.Find(string(kind) + "/" + name); ok {
			return e, true
		}
	}
	return Entry{}, false
}

// Inputs are the items whose change means another process; nil for what is no process.
func Inputs(it Item) []Ref {
	switch it := it.(type) {
	case Unit:
		return it.Inputs
	case StaticPod:
		return it.Inputs
	default:
		return nil
	}
}

// HoldsOf is what a process must not begin anew without; the zero Holds for what is no process.
func HoldsOf(it Item) DataGuard {
	switch it := it.(type) {
	case Unit:
		return it.DataGuard
	case StaticPod:
		return it.DataGuard
	default:
		return DataGuard{}
	}
}
