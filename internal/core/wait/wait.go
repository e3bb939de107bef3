// SPDX-License-Identifier: Apache-2.0

// Package wait says what something waits for: the one form for records, services, status and the wire.
//
// Read [For].
//
//	wait.For{What: "approval of node dev-worker-0", Who: "slipway node approve dev-worker-0"}
package wait

import (
	"fmt"
	"time"
)

// For is what is waited for, who provides it, and since when. The zero value waits for nothing.
type For struct {
	What  string    `json:"for,omitempty"`      // "approval of node dev-worker-0"
	Who   string    `json:"provider,omitempty"` // who provides it: a machine, a component or a command; empty: not known
	Since time.Time `json:"since,omitzero"`     // zero: not known
}

// None reports whether nothing is waited for.
func (f For) None() bool { return f.What == "" }

// Same reports whether both wait for the same thing from the same provider. It ignores Since.
func (f For) Same(o For) bool { return f.What == o.What && f.Who == o.Who }

// Text is the status line: "waiting for X (provided by Y)". It is not String, which types that embed For would inherit.
func (f For) Text() string {
	if f.Who == "" {
		return "waiting for " + f.What
	}
	return fmt.Sprintf("waiting for %s (provided by %s)", f.What, f.Who)
}

// Error means "later": nothing has failed, and the caller asks again.
type Error struct{ For }

func (e *Error) Error() string { return e.Text() }
