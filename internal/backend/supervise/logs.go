// SPDX-License-Identifier: Apache-2.0

package supervise

// Logs is the path of a unit's log; older ones have .1, .2, .3 appended.
func (h *Host) Logs(unit string) string { return h.logs.Path(unit) }

// Tail is the last n lines that a unit has written.
func (h *Host) Tail(unit string, n int) ([]string, error) { return h.logs.Tail(unit, n) }
