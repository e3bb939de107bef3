// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"testing"

	"github.com/godbus/dbus/v5"
)

// Whoever listens hears the end, also who comes after it.
func TestHearingEnds(t *testing.T) {
	t.Parallel()
	h := newHearing()
	before, after := make(chan *dbus.Signal, 1), make(chan *dbus.Signal, 1)
	h.AddSignal(before)
	h.DeliverSignal("", "", &dbus.Signal{Name: "said"})
	if s := <-before; s == nil || s.Name != "said" {
		t.Errorf("heard %+v", s)
	}
	h.Terminate()
	h.AddSignal(after)
	for name, ch := range map[string]chan *dbus.Signal{"before": before, "after": after} {
		if s, open := <-ch; open {
			t.Errorf("who listened %s the end hears %+v", name, s)
		}
	}
}
