// SPDX-License-Identifier: Apache-2.0

// Package plan is the vocabulary between planning and acting: what one node must have ([Plan]), what it
// has ([State]), and the difference ([Step]). A plan is plain data, a versioned wire format, and contains
// no secrets. The package knows nothing about Kubernetes or the configuration a plan was made from, and it
// never touches a machine.
//
// Read [Plan] and [Builder] first, then [Diff].
//
//	var b plan.Builder
//	key := b.Add(plan.Cert{Want: w})
//	b.Add(plan.Unit{Name: "etcd", …}, key)   // starts once the certificate has been observed ready
package plan

import (
	"slices"
	"time"
)

// Version is the wire version of Plan that this code writes. A reader refuses any other.
const Version = 1

// Plan is everything that one node must have. Each entry comes after the entries it needs.
type Plan struct {
	Version int     `json:"version"`
	Cluster string  `json:"cluster"`
	Node    string  `json:"node"`
	Release string  `json:"release"` // exact Kubernetes version, for people and for status
	Entries []Entry `json:"entries"`
}

// Entry is an item and its edges in the dependency graph.
type Entry struct {
	Ref   Ref   `json:"ref"`
	Item  Item  `json:"-"`
	Needs []Ref `json:"needs,omitempty"` // the item starts once all of these have been observed ready
	// Deadline bounds one attempt to apply the item, not the time spent waiting for it. 0 means one
	// minute.
	Deadline time.Duration `json:"deadline,omitempty"`
	// Rolling: while the item runs, it is replaced only by the holder of the cluster's rollout lease, so on one machine at a time.
	Rolling bool `json:"rolling,omitempty"`
}

// Ref identifies an entry: "unit/etcd", "file//etc/kubernetes/audit-policy.yaml". Only a Builder or the
// decoder creates one.
type Ref struct{ id string }

func (r Ref) String() string { return r.id }

// IsZero reports whether r refers to no entry.
func (r Ref) IsZero() bool { return r.id == "" }

// RefOf returns the reference of an item. It is the same in every plan.
func RefOf(it Item) Ref { return Ref{string(it.Kind()) + "/" + it.Key()} }

// Find returns the entry with the given reference, for example "unit/etcd".
func (p Plan) Find(ref string) (Entry, bool) {
	for _, e := range p.Entries {
		if e.Ref.id == ref {
			return e, true
		}
	}
	return Entry{}, false
}

// Process returns the entry that runs the named component, either as a unit or as a static pod.
func (p Plan) Process(name string) (Entry, bool) {
	for _, kind := range []Kind{KindUnit, KindStaticPod} {
		if e, ok := p.Find(string(kind) + "/" + name); ok {
			return e, true
		}
	}
	return Entry{}, false
}

// Inputs returns the items whose change restarts the process of it, or nil if the item is not a process.
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

// DataGuardOf returns the data guard of a process, or the zero DataGuard if the item is not a process.
func DataGuardOf(it Item) DataGuard {
	switch it := it.(type) {
	case Unit:
		return it.DataGuard
	case StaticPod:
		return it.DataGuard
	default:
		return DataGuard{}
	}
}

// Builder collects the entries of a plan. Refs come only from Add, so an item can only need items added
// before it: a dependency cycle cannot be expressed. The zero value is ready to use.
type Builder struct {
	entries []Entry
	index   map[Ref]int
}

// Add appends an item that starts once all needs are ready, and returns its reference. It panics on
// planner bugs: the same kind and key added twice, a need that is not in the plan, or a unit input that is
// not among the needs.
func (b *Builder) Add(it Item, needs ...Ref) Ref {
	ref := RefOf(it)
	if b.index == nil {
		b.index = map[Ref]int{}
	}
	if _, dup := b.index[ref]; dup {
		panic("plan: " + ref.id + " added twice")
	}
	for _, n := range needs {
		if _, ok := b.index[n]; !ok {
			panic("plan: " + ref.id + " needs " + n.id + ", which is not in the plan")
		}
	}
	for _, in := range Inputs(it) {
		if !slices.Contains(needs, in) { // otherwise the unit could start before its input exists
			panic("plan: " + ref.id + " has input " + in.id + " but does not need it")
		}
	}
	b.index[ref] = len(b.entries)
	e := Entry{Ref: ref, Item: it}
	for _, n := range needs {
		if !slices.Contains(e.Needs, n) {
			e.Needs = append(e.Needs, n)
		}
	}
	b.entries = append(b.entries, e)
	return ref
}

// Rolling marks an entry as rolling, see [Entry.Rolling].
func (b *Builder) Rolling(r Ref) Ref {
	b.entries[b.index[r]].Rolling = true
	return r
}

// AddWithDeadline is Add with a deadline for one attempt to apply the item. 0 means the default, see
// [Entry.Deadline].
func (b *Builder) AddWithDeadline(deadline time.Duration, it Item, needs ...Ref) Ref {
	ref := b.Add(it, needs...)
	b.entries[b.index[ref]].Deadline = deadline
	return ref
}

// Plan returns the finished plan for a node.
func (b *Builder) Plan(cluster, node, release string) Plan {
	return Plan{Version: Version, Cluster: cluster, Node: node, Release: release, Entries: slices.Clone(b.entries)}
}

// Find returns an entry that was added before.
func (b *Builder) Find(r Ref) (Entry, bool) {
	i, ok := b.index[r]
	if !ok {
		return Entry{}, false
	}
	return b.entries[i], true
}
