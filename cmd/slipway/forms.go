// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/slipway-project/slipway/internal/bootstrap"
	"github.com/slipway-project/slipway/internal/inventory"
	"github.com/slipway-project/slipway/internal/render"
	"github.com/slipway-project/slipway/internal/render/cloudinit"
	"github.com/slipway-project/slipway/internal/render/fleet"
	"github.com/slipway-project/slipway/internal/render/ignition"
	"github.com/slipway-project/slipway/internal/render/staticpod"
	"github.com/slipway-project/slipway/internal/render/systemd"
)

// forms is the table of what slipway render can write, one row per form.
func forms() []bootstrap.Form {
	return []bootstrap.Form{
		bootstrap.PlanForm("systemd", "units, mounts and files to lay over a machine's root", systemd.Render),
		{Name: "fleet", Summary: "units with an [X-Fleet] section, and the files that they fetch", Render: func(_ context.Context, _ inventory.Inventory, p bootstrap.PlannedNode) (render.Rendered, error) {
			return fleet.With(p.Plan, p.Cluster.Config.Units)
		}},
		example(bootstrap.FirstBootForm("cloud-init", "user data with which a blank machine joins the cluster", "user-data", cloudinit.Render),
			"--name prod --node prod-worker-3 --to out"),
		bootstrap.FirstBootForm("ignition", "the same for Ignition", "config.ign", ignition.Render),
		example(bootstrap.PlanForm("staticpod", "manifests of static pods, and the files that they read", staticpod.Render), "-f cluster.yaml --to out"),
	}
}

// example gives a form an example in the help of slipway render.
func example(f bootstrap.Form, flags string) bootstrap.Form {
	f.Example = flags
	return f
}
