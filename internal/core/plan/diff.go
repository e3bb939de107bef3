// SPDX-License-Identifier: Apache-2.0

package plan

// State is what a host has of one entry. The zero State means that nobody knows: unknown is not absent.
type State struct {
	Existence Existence `json:"existence"`
	Matches   bool      `json:"matches"` // what exists is what is wanted (content, mode, arguments, inputs)
	Ready     bool      `json:"ready"`   // what exists may be relied on
	Detail    string    `json:"detail,omitempty"`
	// Down: it exists and is of no use to anybody, so that to exchange it takes nothing away. Only said of what is not ready.
	Down bool `json:"down,omitempty"`
}

// Existence is three-valued on purpose.
type Existence string

// The three answers.
const (
	Unknown Existence = ""
	Absent  Existence = "absent"
	Present Existence = "present"
)

// Observed is what a host has, entry by entry. A missing key means Unknown.
type Observed map[Ref]State

// Verb says what a step does.
type Verb string

// The verbs.
const (
	Create  Verb = "create"  // make what is absent; for a unit: start it
	Replace Verb = "replace" // exchange what differs; for a unit: restart it
	Remove  Verb = "remove"  // take away what an earlier plan made and this one does not want
)

// Step is one thing to do, and the reason in words.
type Step struct {
	Verb Verb   `json:"verb"`
	Ref  Ref    `json:"ref"`
	Why  string `json:"why"`
}

// Next is the step that brings one entry to its wanted form; ok is false when there is nothing to do or when its state is
// unknown, for nothing is done on no evidence.
func Next(e Entry, s State) (step Step, ok bool) {
	switch {
	case s.Existence == Unknown:
		return Step{}, false
	case s.Existence == Absent:
		return Step{Create, e.Ref, orElse(s.Detail, "it does not exist")}, e.Item.Kind() != KindPrecondition
	case !s.Matches:
		return Step{Replace, e.Ref, orElse(s.Detail, "it differs from the plan")}, e.Item.Kind() != KindPrecondition
	}
	return Step{}, false
}

// Diff lists the steps from have to want, each after the steps it needs. Removals come first, last made first gone; they
// concern only what was in before, the plan that was applied last: what Slipway did not make it does not remove.
func Diff(want, before Plan, have Observed) []Step {
	var steps []Step
	for _, e := range Gone(want, before) {
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

// Gone lists the entries of before that want does not have, dependents first. Gates are not among them: nobody here made them.
func Gone(want, before Plan) []Entry {
	keep := map[Ref]bool{}
	for _, e := range want.Entries {
		keep[e.Ref] = true
	}
	var gone []Entry
	for i := len(before.Entries) - 1; i >= 0; i-- {
		if e := before.Entries[i]; !keep[e.Ref] && e.Item.Kind() != KindPrecondition {
			gone = append(gone, e)
		}
	}
	return gone
}

func orElse(s, otherwise string) string {
	if s != "" {
		return s
	}
	return otherwise
}
