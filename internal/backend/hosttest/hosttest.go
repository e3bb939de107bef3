// SPDX-License-Identifier: Apache-2.0

// Package hosttest is the conformance suite of live hosts: what the loop relies on, written once and run on every
// reconcile.Host. It is for tests and is never part of what ships.
//
// Read [Rig] first, which a backend fills in, then [Run].
//
//	func TestConformance(t *testing.T) { hosttest.Run(t, func(t *testing.T) hosttest.Rig { … }) }
//	func TestMain(m *testing.M)        { hosttest.BehaveIfAsked(); os.Exit(m.Run()) } // for real processes
package hosttest

import (
	"context"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// Rig is a host and the means to look behind it. Functions are called from one test at a time.
type Rig struct {
	Host reconcile.Host
	Dir  string // absolute; everything that a test makes lies below

	// Unit is a unit that behaves as told. It becomes ready when its behaviour says so.
	Unit func(name string, b Behaviour) plan.Unit
	// Open makes a unit with HoldReady, or a gate, ready.
	Open func(name string)
	// Gate is an item that is closed until Open.
	Gate func(name string) plan.Precondition
	// Crash ends the unit's main process behind the host's back.
	Crash func(unit string)
	// Starts counts the processes that the unit has ever had; a start that is under way may be missing.
	Starts func(unit string) int
	// Running counts the unit's live processes, children included.
	Running func(unit string) int
	// Signals lists what the unit's main processes were sent and could hear, oldest first.
	Signals func(unit string) []string
	// Spoil writes a file behind the host's back; Read reads it.
	Spoil func(path string, mode fs.FileMode, content string)
	Read  func(path string) (mode fs.FileMode, content string, ok bool)

	// Optional: what has no processes has no limits either.

	// Limit writes the file by which components have limits, with these settings.
	Limit func(settings ...string)
	// Main is the unit's main process.
	Main func(unit string) int
}

// Behaviour is what a unit's process does. The zero value runs until it is told to end, and is ready at once.
type Behaviour struct {
	Ready      plan.ProbeKind // how readiness is asked: none, http, tcp, notify, file
	HoldReady  bool           // not ready before Rig.Open
	Exit       bool           // end at once, with Code
	Code       int
	Say        string // lines written to the log
	IgnoreTerm bool
	Child      bool // has a child that ignores what happens to its parent
	Oneshot    bool
}

// Run runs the suite. Each test has a rig of its own.
func Run(t *testing.T, newRig func(t *testing.T) Rig) {
	for name, test := range map[string]func(*testing.T, kit){
		"FileIsMadeAndMended":          fileIsMadeAndMended,
		"DirIsMadeAndMended":           dirIsMadeAndMended,
		"RemoveTakesOnlyWhatItMade":    removeTakesOnlyWhatItMade,
		"GateIsNeverMade":              gateIsNeverMade,
		"GateIsAwaited":                gateIsAwaited,
		"UnitStartsOnce":               unitStartsOnce,
		"UnitReadyIsSeenAtOnce":        unitReadyIsSeenAtOnce,
		"AwaitTellsReasons":            awaitTellsReasons,
		"AwaitOfNothingIsPointless":    awaitOfNothingIsPointless,
		"AwaitEndsWithContext":         awaitEndsWithContext,
		"ChangedArgumentsRestartOnce":  changedArgumentsRestartOnce,
		"ChangedInputRestartsOnce":     changedInputRestartsOnce,
		"ChangedProbeRestartsNothing":  changedProbeRestartsNothing,
		"NewInputMayBeRead":            newInputMayBeRead,
		"SecondPassChangesNothing":     secondPassChangesNothing,
		"CrashIsMended":                crashIsMended,
		"CrashesDelayRestarts":         crashesDelayRestarts,
		"CrashingUnitIsReplacedAtOnce": crashingUnitIsReplacedAtOnce,
		"TermComesFirst":               termComesFirst,
		"KillFollowsTerm":              killFollowsTerm,
		"StopEndsWithContext":          stopEndsWithContext,
		"ChildrenStay":                 childrenStay,
		"ChildrenAreKilled":            childrenAreKilled,
		"LimitsHoldFromTheNextStart":   limitsHoldFromTheNextStart,
		"OneshotRunsOnce":              oneshotRunsOnce,
		"OneshotTellsWhyItFailed":      oneshotTellsWhyItFailed,
		"OneshotEndsWithContext":       oneshotEndsWithContext,
		"RemovedUnitIsAbsent":          removedUnitIsAbsent,
		"ManyEntriesAtOnce":            manyEntriesAtOnce,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, kit{newRig(t), t})
		})
	}
}

// kit is the rig with what the tests say often.
type kit struct {
	Rig
	t *testing.T
}

func entry(it plan.Item) plan.Entry { return plan.Entry{Ref: plan.RefOf(it), Item: it} }

func (k kit) observe(it plan.Item) plan.State {
	k.t.Helper()
	s, err := k.Host.Observe(k.t.Context(), entry(it))
	if err != nil {
		k.t.Fatalf("observe %s: %v", plan.RefOf(it), err)
	}
	return s
}

// converge does what the loop does with one entry, and returns the verb of the step or "".
func (k kit) converge(it plan.Item) plan.Verb {
	k.t.Helper()
	step, ok := plan.Next(entry(it), k.observe(it))
	if ok {
		k.do(step.Verb, it)
	}
	k.await(it)
	k.want(it, fine())
	return step.Verb
}

func (k kit) do(v plan.Verb, it plan.Item) {
	k.t.Helper()
	if err := k.tryDo(k.t.Context(), v, it); err != nil {
		k.t.Fatalf("%s %s: %v", v, plan.RefOf(it), err)
	}
}

func (k kit) tryDo(ctx context.Context, v plan.Verb, it plan.Item) error {
	return k.Host.Do(ctx, plan.Step{Verb: v, Ref: plan.RefOf(it), Why: "the test says so"}, entry(it))
}

func (k kit) await(it plan.Item) {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), time.Minute)
	defer cancel()
	last := ""
	if err := k.Host.Await(ctx, entry(it), func(reason string) { last = reason }); err != nil {
		k.t.Fatalf("await %s: %v; last reason: %s", plan.RefOf(it), err, last)
	}
}

// want compares all but the detail.
func (k kit) want(it plan.Item, want plan.State) {
	k.t.Helper()
	have := k.observe(it)
	detail := have.Detail
	have.Detail = ""
	if diff := cmp.Diff(want, have); diff != "" {
		k.t.Errorf("%s (detail %q): %s", plan.RefOf(it), detail, diff)
	}
}

func (k kit) wantDetail(it plan.Item, part string) {
	k.t.Helper()
	if s := k.observe(it); !strings.Contains(s.Detail, part) {
		k.t.Errorf("%s: detail %q does not say %q", plan.RefOf(it), s.Detail, part)
	}
}

func (k kit) wantStarts(unit string, n int) {
	k.t.Helper()
	k.eventually("as many starts as wanted", func() bool { return k.Starts(unit) >= n })
	if have := k.Starts(unit); have != n {
		k.t.Errorf("%s was started %d times, want %d", unit, have, n)
	}
}

// eventually waits for what the host does by itself. Nothing is asserted by waiting: when it does not come, the test fails.
func (k kit) eventually(what string, is func() bool) {
	k.t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-deadline:
			k.t.Fatalf("never came: %s", what)
		case <-tick.C:
		}
	}
}
