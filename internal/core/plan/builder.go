// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"time"
)

// Builder collects the entries of a plan. A Ref comes only from Add, so an item can need only what was added before it:
// a cycle cannot be written. The zero value is ready to use.
type Builder struct {
	entries []Entry
	index   map[Ref]int
}

// Add appends an item that starts when all needs are ready, and returns its handle. Adding the same kind and key twice is
// a bug of the planner and panics, as is a unit's input that is not among its needs.
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
		if !slices.Contains(needs, in) { // it could be started before what it reads is there
			panic("plan: " + ref.id + " has the input " + in.id + " and does not need it")
		}
	}
	b.index[ref] = len(b.entries)
	b.entries = append(b.entries, Entry{Ref: ref, Item: it, Needs: unique(needs)})
	return ref
}

// InTurn has an entry exchanged only in its machine's turn, see [Entry.Turn].
func (b *Builder) InTurn(r Ref, turn string) Ref {
	b.entries[b.index[r]].Turn = turn
	return r
}

// AddIn is Add for an item one attempt at which may take longer or shorter than usual; 0 is the usual.
func (b *Builder) AddIn(deadline time.Duration, it Item, needs ...Ref) Ref {
	ref := b.Add(it, needs...)
	b.entries[b.index[ref]].Deadline = deadline
	return ref
}

// Plan returns the finished plan for a node.
func (b *Builder) Plan(cluster, node, release string) Plan {
	return Plan{Version: Version, Cluster: cluster, Node: node, Release: release, Entries: slices.Clone(b.entries)}
}

func unique(refs []Ref) []Ref {
	var out []Ref
	for _, r := range refs {
		if !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	return out
}

// Find returns an entry added before.
func (b *Builder) Find(r Ref) (Entry, bool) {
	i, ok := b.index[r]
	if !ok {
		return Entry{}, false
	}
	return b.entries[i], true
}
