// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/core/plan"
)

const (
	firstDelay         = 100 * time.Millisecond
	maxDelay           = 30 * time.Second
	defaultStopTimeout = 10 * time.Second
)

// unit is a simulated process.
type unit struct {
	spec     plan.Unit
	inputs   map[plan.Ref]string
	around   contents // the items that existed when it was started
	does     Behaviour
	phase    phase
	running  bool
	ready    bool
	done     bool // a oneshot that has succeeded
	starts   int
	children int
	crashes  int
	signals  []string
	reason   string
	timers   []*time.Timer
}

type phase int

const (
	never phase = iota
	supervised
	stopping
	stopped
)

func (h *Host) observeUnitLocked(spec plan.Unit) (plan.State, error) {
	u := h.units[spec.Name]
	switch {
	case u == nil || u.phase == never:
		return absent("it has never been started"), nil
	case spec.Oneshot && u.running:
		return plan.State{Existence: plan.Present, Matches: true, Detail: "it is running"}, nil
	case spec.Oneshot && !u.done:
		return absent("it has not run yet"), nil
	case u.phase == stopped || u.phase == stopping && !u.running:
		return absent("it is stopped"), nil
	case u.phase == stopping:
		return wrong("it is being stopped"), nil
	}
	now, err := h.inputsLocked(spec)
	if err != nil {
		return plan.State{}, err
	}
	h.adoptLocked(u, now)
	if why := u.differs(spec, now); why != "" {
		return plan.State{Existence: plan.Present, Ready: u.ready && !spec.Oneshot, Detail: why, Down: !u.running}, nil
	}
	if spec.Oneshot {
		return right(), nil
	}
	u.spec = spec
	s := plan.State{Existence: plan.Present, Matches: true, Ready: u.ready}
	if !u.ready {
		s.Detail = u.reason
	}
	return s, nil
}

// adoptLocked adds inputs that the unit did not name when it was started and that have not changed since.
func (h *Host) adoptLocked(u *unit, now map[plan.Ref]string) {
	for ref, sum := range now {
		if _, known := u.inputs[ref]; !known && u.around.fingerprint(h.seen[ref]) == sum {
			u.inputs[ref] = sum
		}
	}
}

// differs describes how the running process differs from spec, or returns "".
func (u *unit) differs(spec plan.Unit, inputs map[plan.Ref]string) string {
	var why []string
	if !slices.Equal(u.spec.Args, spec.Args) {
		why = append(why, "its arguments")
	}
	if !slices.Equal(u.spec.Env, spec.Env) {
		why = append(why, "its environment")
	}
	for _, ref := range slices.SortedFunc(maps.Keys(inputs), func(a, b plan.Ref) int { return strings.Compare(a.String(), b.String()) }) {
		if sum, ok := u.inputs[ref]; !ok || sum != inputs[ref] {
			why = append(why, ref.String())
		}
	}
	if len(why) == 0 {
		return ""
	}
	return strings.Join(why, ", ") + " changed"
}

func (h *Host) inputsLocked(spec plan.Unit) (map[plan.Ref]string, error) {
	inputs := map[plan.Ref]string{}
	for _, ref := range spec.Inputs {
		sum, err := h.fingerprintLocked(ref)
		if err != nil {
			return nil, err
		}
		inputs[ref] = sum
	}
	return inputs, nil
}

func (h *Host) doUnit(ctx context.Context, v plan.Verb, spec plan.Unit) error {
	h.mu.Lock()
	u := h.units[spec.Name]
	if u == nil {
		u = &unit{}
		h.units[spec.Name] = u
	}
	s, err := h.observeUnitLocked(spec)
	h.mu.Unlock()
	if v == plan.Create && (err != nil || s.Matches && !spec.Oneshot) {
		return err
	}
	if err := h.stop(ctx, u); err != nil || v == plan.Remove {
		return err
	}
	h.mu.Lock()
	u.spec, u.crashes, u.done = spec, 0, false
	err = u.startLocked(h)
	h.mu.Unlock()
	if err != nil || !spec.Oneshot {
		return err
	}
	return h.runToEnd(ctx, u)
}

func (u *unit) startLocked(h *Host) error {
	inputs, err := h.inputsLocked(u.spec)
	if err != nil {
		return err
	}
	u.does, u.inputs, u.around, u.phase = h.behaviour[u.spec.Name], inputs, h.contentsLocked().clone(), supervised
	u.running, u.ready, u.reason = true, false, "waiting for "+u.spec.Ready.String()
	u.starts++
	if u.spec.KillChildren {
		u.children = 0
	}
	if u.does.Child {
		u.children++
	}
	switch {
	case u.does.Exit && !u.spec.Oneshot:
		u.crashedLocked(h, fmt.Sprintf("exited with %d", u.does.Code))
	case u.does.HoldReady && !h.open[u.spec.Name]:
	default:
		u.afterLocked(h, u.does.ReadyAfter, func() { u.readyLocked(h) })
	}
	return nil
}

func (u *unit) readyLocked(h *Host) {
	if u.running && u.phase == supervised && !u.ready {
		u.ready, u.reason = true, ""
		h.changeLocked()
	}
}

// crashedLocked restarts the unit after a delay that doubles with each crash.
func (u *unit) crashedLocked(h *Host, how string) {
	u.stopTimersLocked()
	delay := min(firstDelay<<min(u.crashes, 20), maxDelay)
	u.crashes++
	u.running, u.ready = false, false
	if u.does.Say != "" {
		how += ", last output: " + u.does.Say
	}
	u.reason = fmt.Sprintf("%s (%d in a row), restarting in %s", how, u.crashes, delay)
	u.afterLocked(h, delay, func() {
		if err := u.startLocked(h); err != nil {
			u.reason = err.Error()
		}
	})
	h.changeLocked()
}

// afterLocked calls f after d, unless the unit's timers are stopped before.
func (u *unit) afterLocked(h *Host, d time.Duration, f func()) {
	if d == 0 {
		f()
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(d, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if !h.closed && slices.Contains(u.timers, timer) {
			f()
			h.changeLocked()
		}
	})
	u.timers = append(u.timers, timer)
}

func (u *unit) stopTimersLocked() {
	for _, t := range u.timers {
		t.Stop()
	}
	u.timers = nil
}

func (h *Host) stop(ctx context.Context, u *unit) error {
	h.mu.Lock()
	u.stopTimersLocked()
	was := u.phase
	waits := u.running && u.does.IgnoreTerm
	if u.running {
		u.signals, u.phase, u.ready = append(u.signals, "terminated"), stopping, false
	}
	h.mu.Unlock()
	if waits {
		if err := wait(ctx, max(u.spec.StopTimeout, 0), defaultStopTimeout); err != nil {
			return err
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	u.running, u.ready = false, false
	if u.spec.KillChildren {
		u.children = 0
	}
	if was != never {
		u.phase = stopped
	}
	u.done = false
	return nil
}

// runToEnd runs a oneshot to completion. If ctx ends first, the process is stopped.
func (h *Host) runToEnd(ctx context.Context, u *unit) error {
	if !u.does.Exit { // it would run forever
		<-ctx.Done()
		h.mu.Lock()
		defer h.mu.Unlock()
		u.signals, u.running, u.phase = append(u.signals, "terminated"), false, stopped
		return ctx.Err()
	}
	if err := wait(ctx, u.does.ReadyAfter, 0); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	u.running, u.done = false, u.does.Code == 0
	if u.does.Code != 0 {
		return fmt.Errorf("exited with %d: %s", u.does.Code, u.does.Say)
	}
	return nil
}

func wait(ctx context.Context, d, otherwise time.Duration) error {
	if d == 0 {
		d = otherwise
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
