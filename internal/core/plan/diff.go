// SPDX-License-Identifier: Apache-2.0

package plan

import "cmp"

// State is what a host has of one entry. The zero State means unknown, which is not the same as absent.
type State struct {
	Existence Existence `json:"existence"`
	Matches   bool      `json:"matches"` // what exists is what the plan wants (content, mode, arguments, inputs)
	Ready     bool      `json:"ready"`   // what exists can be relied on
	Detail    string    `json:"detail,omitempty"`
	// Down means that the item exists but is not working, so replacing it makes nothing worse. Only set
	// while Ready is false.
	Down bool `json:"down,omitempty"`
}

// Existence says whether an item exists on the host, if that is known.
type Existence string

// The values of Existence.
const (
	Unknown Existence = ""
	Absent  Existence = "absent"
	Present Existence = "present"
)

// Observed maps entries to their state on a host. A missing key means Unknown.
type Observed map[Ref]State

// Verb says what a step does.
type Verb string

// The verbs.
const (
	Create  Verb = "create"  // make an absent item; for a unit: start it
	Replace Verb = "replace" // replace an item that differs; for a unit: restart it
	Remove  Verb = "remove"  // remove an item that an earlier plan made and this one no longer has
)

// Step is one change to make, with the reason in plain words.
type Step struct {
	Verb Verb   `json:"verb"`
	Ref  Ref    `json:"ref"`
	Why  string `json:"why"`
}

// Next returns the step that brings one entry to its wanted state. ok is false if there is nothing to do,
// or if the state is unknown: nothing is changed without evidence.
func Next(e Entry, s State) (step Step, ok bool) {
	switch {
	case s.Existence == Unknown:
		return Step{}, false
	case s.Existence == Absent:
		return Step{Create, e.Ref, cmp.Or(s.Detail, "it does not exist")}, e.Item.Kind() != KindPrecondition
	case !s.Matches:
		return Step{Replace, e.Ref, cmp.Or(s.Detail, "it differs from the plan")}, e.Item.Kind() != KindPrecondition
	}
	return Step{}, false
}

// Diff lists the steps from have to want, each after the steps it needs. Removals come first, in reverse
// order of creation. Only entries of before, the plan applied last, are removed: Slipway does not remove
// what it did not make.
func Diff(want, before Plan, have Observed) []Step {
	var steps []Step
	for _, e := range Removed(want, before) {
		if s := have[e.Ref]; s.Existence == Present {
			steps = append(steps, Step{Remove, e.Ref, "the plan no longer has it"})
		}
	}
	for _, e := range want.Entries {
		if step, ok := Next(e, have[e.Ref]); ok {
			steps = append(steps, step)
		}
	}
	return steps
}

// Removed lists the entries of before that want no longer has, dependents first. Preconditions are left
// out because this host did not make them.
func Removed(want, before Plan) []Entry {
	keep := map[Ref]bool{}
	for _, e := range want.Entries {
		keep[e.Ref] = true
	}
	var removed []Entry
	for i := len(before.Entries) - 1; i >= 0; i-- {
		if e := before.Entries[i]; !keep[e.Ref] && e.Item.Kind() != KindPrecondition {
			removed = append(removed, e)
		}
	}
	return removed
}

// Effect says how a step affects the processes that run on the machines.
type Effect string

// The effects, least disruptive first.
const (
	Live    Effect = "live"    // no process is affected
	Restart Effect = "restart" // a unit is restarted or stopped on each machine as soon as the machine gets its plan
	Rolling Effect = "rolling" // a unit is restarted on one machine at a time
)

// EffectOf returns the effect of a step on an entry. A changed file has no effect by itself: the unit that
// reads it gets a step of its own.
func EffectOf(e Entry, v Verb) Effect {
	u, isUnit := e.Item.(Unit)
	_, isPod := e.Item.(StaticPod)
	switch {
	case v == Create || !isUnit && !isPod || u.Oneshot:
		return Live
	case v == Replace && e.Rolling:
		return Rolling
	}
	return Restart
}
