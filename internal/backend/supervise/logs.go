// SPDX-License-Identifier: Apache-2.0

package supervise

import "time"

// Logs is the path of a unit's log; older ones have .1, .2, .3 appended.
func (h *Host) Logs(unit string) string { return h.logs.Path(unit) }

// Tail is the last n lines that a unit has written.
func (h *Host) Tail(unit string, n int) ([]string, error) { return h.logs.Tail(unit, n) }

// rotateLogs looks at the sizes now and then; it is one stat per unit.
func (h *Host) rotateLogs() {
	tick := time.NewTicker(h.conf.pace.logs)
	defer tick.Stop()
	for {
		select {
		case <-h.ctx.Done():
			return
		case <-tick.C:
		}
		for _, u := range h.all() {
			if err := h.logs.Rotate(u.name, h.conf.LogSize); err != nil {
				h.conf.Log.Warn("log not rotated", "unit", u.name, "error", err)
			}
		}
	}
}
