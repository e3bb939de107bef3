// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"fmt"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/report"
)

// state is the state of a row.
type state int

const (
	waiting state = iota
	running
	failing
	finished
)

// row is what is known of one item.
type row struct {
	last   report.Event
	state  state
	began  time.Duration // when it was first seen in another state than waiting, since the command started
	told   time.Duration // when its last line was printed
	active bool          // it has been in another state than waiting
	worked bool          // something was changed
}

type key struct {
	stage         report.Stage
	machine, item string
}

// rows are all items, in the order of their first event.
type rows struct {
	order   []*row
	byKey   map[key]*row
	machine string        // the first one that an event named; lines name only the others
	told    time.Duration // when the last line was printed
}

// take notes an event and returns the line to print for it, "" for none.
func (rs *rows) take(e report.Event, plain bool) string {
	if e.Stage == report.StageDone {
		rs.order = nil
		clear(rs.byKey)
		return ""
	}
	e.Text = clean(e.Text)
	rs.overtake(e)
	if rs.machine == "" {
		rs.machine = e.Machine
	}
	k := key{e.Stage, e.Machine, e.Item}
	r, known := rs.byKey[k]
	if !known {
		r = &row{}
		rs.byKey[k] = r
		rs.order = append(rs.order, r)
	}
	before, was := r.last, r.state
	r.last, r.state = e, stateOf(e)
	if r.state != waiting && !r.active {
		r.active, r.began, r.told = true, e.Elapsed, e.Elapsed
	}
	r.worked = r.worked || r.state == failing || e.Phase == "doing"
	if quiet(e) && r.state != failing {
		return ""
	}
	line := rs.line(r, before, was, known, plain)
	if line != "" {
		r.told, rs.told = e.Elapsed, e.Elapsed
	}
	return line
}

// overtake drops rows that a later stage has made obsolete: unfinished rows of earlier stages, and rows
// without a name.
func (rs *rows) overtake(e report.Event) {
	var kept []*row
	for _, r := range rs.order {
		k := key{r.last.Stage, r.last.Machine, r.last.Item}
		over := order(k.stage) < order(e.Stage) || k.stage == e.Stage && k.machine == "" && k.item == "" && k != (key{e.Stage, e.Machine, e.Item})
		if over {
			delete(rs.byKey, k)
			continue
		}
		kept = append(kept, r)
	}
	rs.order = kept
}

// line returns the line for a change of state, "" if nothing has changed. On a terminal only endings and
// failures are printed: the picture has the rest.
func (rs *rows) line(r *row, before report.Event, was state, known, plain bool) string {
	e := r.last
	changed := !known || was != r.state
	switch r.state {
	case waiting:
		return ""
	case finished:
		if changed && !(e.Stage == report.StageConverge && !r.worked && e.Elapsed-r.began < noticeable) {
			return rs.title(e) + ": " + ending(r)
		}
	case failing:
		if changed || before.Text != e.Text {
			return rs.title(e) + ": failing: " + e.Text
		}
	case running:
		if plain && !strings.HasPrefix(e.Item, "control/") && (changed || e.Stage != report.StageConverge && before.Phase != e.Phase) {
			return rs.title(e) + ": " + doing(e)
		}
	}
	return ""
}

// beats returns lines about running rows that had no event for a while.
func (rs *rows) beats(elapsed time.Duration) []string {
	var lines []string
	busy := false
	for _, r := range rs.order {
		if r.state != running && r.state != failing {
			continue
		}
		busy = true
		if elapsed-r.told < beat {
			continue
		}
		r.told = elapsed
		verb := ""
		if r.last.Stage == report.StageBundle && r.last.Item != "" {
			verb = "building "
		}
		lines = append(lines, fmt.Sprintf("%s%s: %s, %s", verb, rs.title(r.last), doing(r.last), seconds(elapsed-r.began)))
	}
	if !busy && elapsed-rs.told >= beat {
		lines = append(lines, "still working")
	}
	if len(lines) > 0 {
		rs.told = elapsed
	}
	return lines
}

// noticeable is the longest time that a check of an item takes that needs no change.
const noticeable = 100 * time.Millisecond

// title is the name of a row for people.
func (rs *rows) title(e report.Event) string {
	name := plainName(e.Item)
	if name == "" {
		name = string(e.Stage)
		if e.Machine != "" {
			return name + " " + e.Machine
		}
	}
	if e.Machine != "" && e.Machine != rs.machine {
		return e.Machine + " " + name
	}
	return name
}

// stateOf derives the state from an event's phase.
func stateOf(e report.Event) state {
	switch e.Phase {
	case "waiting":
		return waiting
	case "failing":
		return failing
	case "", "ready", "finished", "done", "ok", "warning":
		return finished
	}
	return running
}

// quiet reports whether an item is only counted and not named: there are dozens, and each takes a
// millisecond.
func quiet(e report.Event) bool {
	if e.Stage != report.StageConverge {
		return false
	}
	kind, _, _ := strings.Cut(e.Item, "/")
	switch kind {
	case "unit", "control", "precondition", "staticpod":
		return e.Item == "control/role"
	}
	return true
}

// isChange reports whether an event means that something is being changed.
func isChange(e report.Event) bool {
	switch e.Stage {
	case report.StageBundle:
		return true
	case report.StageMachine:
		return e.Phase != "ready" || e.Text != report.AlreadyRunning
	case report.StageConverge:
		return e.Phase == "doing" || e.Phase == "failing"
	}
	return false
}

// order is the position of a stage, -1 for unknown ones.
func order(s report.Stage) int {
	for i, known := range []report.Stage{
		report.StageSpec, report.StagePreflight, report.StageBundle, report.StageMachine, report.StagePlan, report.StageConverge,
	} {
		if s == known {
			return i
		}
	}
	return -1
}
