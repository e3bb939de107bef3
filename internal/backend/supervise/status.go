// SPDX-License-Identifier: Apache-2.0

package supervise

import "time"

// EventKind says what has happened to a unit.
type EventKind string

// The kinds of event.
const (
	Started EventKind = "started"
	Ready   EventKind = "ready"
	Unready EventKind = "unready" // it lives and fails its health probe
	Exited  EventKind = "exited"  // by itself; it is started again
	Done    EventKind = "done"    // a oneshot has ended; whoever ran it says what that means
	Stopped EventKind = "stopped" // because it was told to
)

// Event is one change of a unit's state.
type Event struct {
	At     time.Time
	Unit   string
	Kind   EventKind
	PID    int
	Detail string
}

func (u *unit) event(kind EventKind, pid int, detail string) {
	u.host.conf.Log.Debug("unit "+string(kind), "unit", u.name, "pid", pid, "detail", detail)
	u.host.conf.OnEvent(Event{At: time.Now(), Unit: u.name, Kind: kind, PID: pid, Detail: detail})
}

// UnitStatus is what is known of a unit.
type UnitStatus struct {
	Name      string    `json:"name"`
	PID       int       `json:"pid,omitempty"` // 0 when it does not run
	Since     time.Time `json:"since"`         // of the latest start
	Ready     bool      `json:"ready"`
	Waiting   string    `json:"waiting,omitempty"` // why it is not ready
	Restarts  int       `json:"restarts"`
	LastExit  *Exit     `json:"lastExit,omitempty"`
	RestartAt time.Time `json:"restartAt,omitzero"` // when it is started next; zero unless it is waiting for that
	Oneshot   bool      `json:"oneshot,omitempty"`
}

// Status tells of every unit, by name.
func (h *Host) Status() []UnitStatus {
	var all []UnitStatus
	for _, u := range h.all() {
		u.mu.Lock()
		s := UnitStatus{
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
