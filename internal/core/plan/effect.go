// SPDX-License-Identifier: Apache-2.0

package plan

// Effect is what a step means for what runs on the machines meanwhile.
type Effect string

// The effects, from the lightest on.
const (
	Live    Effect = "live"    // nothing that runs is touched
	Restart Effect = "restart" // a unit is restarted or ended, on each machine as soon as its plan is there
	Rolling Effect = "rolling" // a unit is restarted on one machine at a time
)

// EffectOf tells what a step on an entry means. What the change of a file leads to is a step of the unit that reads it.
func EffectOf(e Entry, v Verb) Effect {
	u, isUnit := e.Item.(Unit)
	_, isPod := e.Item.(StaticPod)
	switch {
	case v == Create || !isUnit && !isPod || u.Oneshot:
		return Live
	case v == Replace && e.Turn != "":
		return Rolling
	}
	return Restart
}
