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
		"a file":                        {Entry{Item: File{}}, Replace, Live},
		"a removed file":                {Entry{Item: File{}}, Remove, Live},
		"a new unit":                    {Entry{Item: unit, Rolling: true}, Create, Live},
		"a rolling unit":                {Entry{Item: unit, Rolling: true}, Replace, Rolling},
		"a unit without a rollout lock": {Entry{Item: unit}, Replace, Restart},
		"a removed unit":                {Entry{Item: unit, Rolling: true}, Remove, Restart},
		"a oneshot":                     {Entry{Item: Unit{Oneshot: true}}, Replace, Live},
		"a rolling static pod":          {Entry{Item: StaticPod{}, Rolling: true}, Replace, Rolling},
		"a user's static pod":           {Entry{Item: StaticPod{}}, Replace, Restart},
	} {
		if got := EffectOf(tc.entry, tc.verb); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}
