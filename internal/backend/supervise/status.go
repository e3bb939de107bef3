// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"time"

	"github.com/slipway-project/slipway/internal/backend/units"
)

func (u *unit) event(kind units.EventKind, pid int, detail string) {
	u.host.conf.Log.Debug("unit "+string(kind), "unit", u.name, "pid", pid, "detail", detail)
	u.host.conf.OnEvent(units.Event{At: time.Now(), Unit: u.name, Kind: kind, PID: pid, Detail: detail})
}

// Status tells of every unit, by name.
func (h *Host) Status() []units.Status {
	var all []units.Status
	for _, u := range h.units.All() {
		u.mu.Lock()
		s := units.Status{
			Name: u.name, PID: u.rec.PID, Since: u.rec.Since, Ready: u.rec.Ready, Restarts: u.rec.Restarts,
			LastExit: u.rec.LastExit, Oneshot: u.rec.Unit.Oneshot,
		}
		if !s.Ready {
			s.Waiting = u.reason
		}
		if u.proc == nil {
			s.RestartAt = u.restartAt
		}
		u.mu.Unlock()
		all = append(all, s)
	}
	return all
}
