// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"slices"
)

// link is one item that lay on the critical path of some runs; times are medians over these runs, in seconds.
type link struct {
	ref   string
	runs  int
	at    float64 // ready, since the agent took up the plan
	took  float64 // since the item before it on the path was ready; over a path these add up to its end
	doing float64 // of that: the step itself; the rest is waiting until it was observed ready
}

// links merges the critical paths of all runs, in order of time.
func links(runs []Run) []link {
	type times struct{ at, took, doing []float64 }
	by := map[string]*times{}
	for _, r := range runs {
		before := 0.0
		for _, s := range r.Path {
			t := by[s.Ref]
			if t == nil {
				t = &times{}
				by[s.Ref] = t
			}
			at := (s.Start + s.Doing + s.Ready).Seconds()
			t.at = append(t.at, at)
			t.took = append(t.took, at-before)
			t.doing = append(t.doing, s.Doing.Seconds())
			before = at
		}
	}
	var out []link
	for ref, t := range by {
		out = append(out, link{ref, len(t.at), spread(t.at).Median, spread(t.took).Median, spread(t.doing).Median})
	}
	slices.SortFunc(out, func(a, b link) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.ref, b.ref)) })
	return out
}
