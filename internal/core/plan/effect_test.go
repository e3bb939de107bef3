// SPDX-License-Identifier: Apache-2.0

package plan

import "testing"

func TestEffectOf(t *testing.T) {
	t.Parallel()
	unit := Unit{Name: "u"}
	for name, tc := range map[string]struct {
		entry Entry
		verb  Verb
		want  Effect
	}{
		"a file":                 {Entry{Item: File{}}, Replace, Live},
		"a file that goes":       {Entry{Item: File{}}, Remove, Live},
		"a new unit":             {Entry{Item: unit, Turn: "x"}, Create, Live},
		"a unit in turn":         {Entry{Item: unit, Turn: "x"}, Replace, Rolling},
		"a unit without a turn":  {Entry{Item: unit}, Replace, Restart},
		"a unit that goes":       {Entry{Item: unit, Turn: "x"}, Remove, Restart},
		"a oneshot":              {Entry{Item: Unit{Oneshot: true}}, Replace, Live},
		"a static pod in turn":   {Entry{Item: StaticPod{}, Turn: "x"}, Replace, Rolling},
		"a static pod of a user": {Entry{Item: StaticPod{}}, Replace, Restart},
	} {
		if got := EffectOf(tc.entry, tc.verb); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}
