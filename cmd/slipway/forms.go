// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/slipway-project/slipway/internal/launch"
	"github.com/slipway-project/slipway/internal/render"
	"github.com/slipway-project/slipway/internal/render/fleet"
	"github.com/slipway-project/slipway/internal/render/systemd"
)

// forms is the table of what slipway render can write, one row per form.
func forms() []launch.Form {
	return []launch.Form{
		launch.PlanForm("systemd", "units, mounts and files to lay over a machine's root", systemd.Render),
		{Name: "fleet", Summary: "units with an [X-Fleet] section, and the files that they fetch", Render: func(_ context.Context, p launch.Planned) (render.Rendered, error) {
			return fleet.With(p.Plan, launch.FleetUnits(p.Cluster))
		}},
	}
}
