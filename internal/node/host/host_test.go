// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"testing"

	"github.com/slipway-project/slipway/internal/backend/units"
	"github.com/slipway-project/slipway/internal/node/host"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// A unit that dies is not ready until it is back, whatever the loop reports meanwhile; a oneshot that ends has not died.
func TestReportUnit(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		kind units.EventKind
		want reconcile.Phase
	}{
		"a unit dies":    {units.Exited, reconcile.Failing},
		"a unit hangs":   {units.Unready, reconcile.Failing},
		"a oneshot ends": {units.Done, reconcile.Ready},
	} {
		b := reconcile.NewBoard()
		b.Set(reconcile.Status{Ref: "unit/u", Phase: reconcile.Doing})
		host.ReportUnit(b, units.Event{Unit: "u", Kind: tc.kind})
		b.Set(reconcile.Status{Ref: "unit/u", Phase: reconcile.Ready})
		if all, _ := b.All(); all[0].Phase != tc.want {
			t.Errorf("%s: %s, want %s", name, all[0].Phase, tc.want)
		}
		host.ReportUnit(b, units.Event{Unit: "u", Kind: units.Ready})
		if all, _ := b.All(); all[0].Phase != reconcile.Ready {
			t.Errorf("%s, and is back: %s", name, all[0].Phase)
		}
	}
}
