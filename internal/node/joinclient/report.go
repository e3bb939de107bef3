// SPDX-License-Identifier: Apache-2.0

package joinclient

import "time"

// reporter tells what is waited for when that changes, and keeps since when.
type reporter struct {
	report func(Status)
	last   Status
}

func (r *reporter) tell(s Status) {
	if s.Since.IsZero() {
		s.Since = time.Now()
		if r.last.What == s.What {
			s.Since = r.last.Since
		}
	}
	if s.What == r.last.What && s.Who == r.last.Who && s.Detail == r.last.Detail && s.Since.Equal(r.last.Since) {
		return
	}
	r.last = s
	r.report(s)
}

// nothing is waited for any more.
func (r *reporter) nothing() {
	if r.last.What != "" {
		r.last = Status{}
		r.report(Status{})
	}
}
