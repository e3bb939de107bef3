// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"sync"

	"github.com/godbus/dbus/v5"
)

// hearing hands a connection's signals to who listens, one after the other, as the library's own handler does, which it is but for
// one thing: who begins to listen when the connection has ended already is told so at once, and does not wait for ever.
type hearing struct {
	dbus.SignalHandler

	mu   sync.Mutex // guards the field below
	over bool
}

func newHearing() *hearing { return &hearing{SignalHandler: dbus.NewSequentialSignalHandler()} }

// AddSignal begins to listen, see dbus.SignalRegistrar.
func (h *hearing) AddSignal(ch chan<- *dbus.Signal) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r, ok := h.SignalHandler.(dbus.SignalRegistrar); ok && !h.over {
		r.AddSignal(ch)
		return
	}
	close(ch)
}

// RemoveSignal ends listening, see dbus.SignalRegistrar.
func (h *hearing) RemoveSignal(ch chan<- *dbus.Signal) {
	if r, ok := h.SignalHandler.(dbus.SignalRegistrar); ok {
		r.RemoveSignal(ch)
	}
}

// Terminate is called when the connection ends, see dbus.Terminator.
func (h *hearing) Terminate() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
	if t, ok := h.SignalHandler.(dbus.Terminator); ok {
		t.Terminate()
	}
}
