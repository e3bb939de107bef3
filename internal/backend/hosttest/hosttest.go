// SPDX-License-Identifier: Apache-2.0

// Package hosttest is the conformance suite of hosts: what the loop relies on, written once and run
// against every reconcile.Host. It is only for tests and never part of the shipped binary.
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
	"github.com/slipway-project/slipway/internal/testkit"
)

// Rig is a host and the means to act on it from outside. Functions are called from one test at a time.
type Rig struct {
	Host reconcile.Host
	Dir  string // absolute; tests create everything below it

	// Unit returns a unit with the given behaviour. It becomes ready when its behaviour says so.
	Unit func(name string, b Behaviour) plan.Unit
	// Open makes a unit with HoldReady, or a precondition, ready.
	Open func(name string)
	// Precondition returns a precondition that is not ready until Open.
	Precondition func(name string) plan.Precondition
	// Crash kills the unit's main process without telling the host.
	Crash func(unit string)
	// Starts counts the processes that the unit has had. A start in progress may be missing.
	Starts func(unit string) int
	// Running counts the unit's live processes, children included.
	Running func(unit string) int
	// Signals lists the catchable signals that the unit's main processes have received, oldest first.
	Signals func(unit string) []string
	// WriteFile writes a file without telling the host; ReadFile reads it.
	WriteFile func(path string, mode fs.FileMode, content string)
	ReadFile  func(path string) (mode fs.FileMode, content string, ok bool)

	// Optional, for hosts with real processes.

	// Limit writes the file with the resource limits of components.
	Limit func(settings ...string)
	// MainPID returns the PID of the unit's main process.
	MainPID func(unit string) int
	// Restart replaces the host by a new one, as after the death of the agent, and calls between while there
	// is none. The rig's functions then use the new host.
	Restart func(between func()) reconcile.Host
	// Record returns the path of the unit's record. The previous generation has ".prev" appended.
	Record func(unit string) string
}

// Behaviour is what a unit's process does. The zero value runs until it is stopped, and is ready at
// once.
type Behaviour struct {
	Ready      plan.ProbeKind // none, http, tcp, notify or file
	HoldReady  bool           // not ready before Rig.Open
	Exit       bool           // end at once, with Code
	Code       int
	Say        string // lines written to the log
	IgnoreTerm bool
	Child      bool // starts a child that survives it
	Oneshot    bool
}

// Run runs the suite. Each test has its own rig.
func Run(t *testing.T, newRig func(t *testing.T) Rig) {
	for name, test := range map[string]func(*testing.T, kit){
		"FileIsMadeAndRepaired":        fileIsMadeAndRepaired,
		"DirIsMadeAndRepaired":         dirIsMadeAndRepaired,
		"RemoveKeepsForeignFiles":      removeKeepsForeignFiles,
		"PreconditionIsNeverMade":      preconditionIsNeverMade,
		"PreconditionIsAwaited":        preconditionIsAwaited,
		"UnitStartsOnce":               unitStartsOnce,
		"UnitReadyIsReportedQuickly":   unitReadyIsReportedQuickly,
		"AwaitReportsReasons":          awaitReportsReasons,
		"AwaitOfAbsentItemFails":       awaitOfAbsentItemFails,
		"AwaitEndsWithContext":         awaitEndsWithContext,
		"ChangedArgumentsRestartOnce":  changedArgumentsRestartOnce,
		"ChangedInputRestartsOnce":     changedInputRestartsOnce,
		"ChangedProbeRestartsNothing":  changedProbeRestartsNothing,
		"UnchangedNewInputNoRestart":   unchangedNewInputNoRestart,
		"SecondPassChangesNothing":     secondPassChangesNothing,
		"CrashedUnitIsRestarted":       crashedUnitIsRestarted,
		"CrashesDelayRestarts":         crashesDelayRestarts,
		"CrashingUnitIsReplacedAtOnce": crashingUnitIsReplacedAtOnce,
		"TermComesFirst":               termComesFirst,
		"KillFollowsTerm":              killFollowsTerm,
		"StopEndsWithContext":          stopEndsWithContext,
		"ChildrenStay":                 childrenStay,
		"ChildrenAreKilled":            childrenAreKilled,
		"LimitsApplyAtNextStart":       limitsApplyAtNextStart,
		"OneshotRunsOnce":              oneshotRunsOnce,
		"OneshotReportsFailure":        oneshotReportsFailure,
		"OneshotEndsWithContext":       oneshotEndsWithContext,
		"RemovedUnitIsAbsent":          removedUnitIsAbsent,
		"GuardSurvivesLostRecord":      guardSurvivesLostRecord,
		"ManyEntriesAtOnce":            manyEntriesAtOnce,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, kit{newRig(t), t})
		})
	}
}

// kit is a rig with helpers for the tests.
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

// converge applies the plan to one entry like the loop, and returns the verb of the step, or "" if there
// was none.
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
	return k.Host.Do(ctx, plan.Step{Verb: v, Ref: plan.RefOf(it), Why: "test"}, entry(it))
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

// want compares everything except the detail.
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
		k.t.Errorf("%s: got detail %q, want it to contain %q", plan.RefOf(it), s.Detail, part)
	}
}

func (k kit) wantStarts(unit string, n int) {
	k.t.Helper()
	testkit.Eventually(k.t, "the wanted number of starts", func() bool { return k.Starts(unit) >= n })
	if have := k.Starts(unit); have != n {
		k.t.Errorf("%s: got %d starts, want %d", unit, have, n)
	}
}
