// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"sync"

	"github.com/godbus/dbus/v5"
)

// hearing hands a connection's signals to who listens, as the library's own handler does, which it is but for one thing: who begins
// to listen when the connection has ended already is told so at once, and does not wait for ever.
type hearing struct {
	signalHandler

	mu   sync.Mutex // guards the field below
	over bool
}

type signalHandler interface {
	dbus.SignalHandler
	dbus.SignalRegistrar
	dbus.Terminator
}

func newHearing() *hearing { return &hearing{signalHandler: dbus.NewDefaultSignalHandler()} }

// AddSignal begins to listen, see dbus.SignalRegistrar.
func (h *hearing) AddSignal(ch chan<- *dbus.Signal) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over {
		close(ch)
		return
	}
	h.signalHandler.AddSignal(ch)
}

// Terminate is called when the connection ends, see dbus.Terminator.
func (h *hearing) Terminate() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
	h.signalHandler.Terminate()
}
