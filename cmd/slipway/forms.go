// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/slipway-project/slipway/internal/launch"
	"github.com/slipway-project/slipway/internal/render"
	"github.com/slipway-project/slipway/internal/render/cloudinit"
	"github.com/slipway-project/slipway/internal/render/fleet"
	"github.com/slipway-project/slipway/internal/render/ignition"
	"github.com/slipway-project/slipway/internal/render/staticpod"
	"github.com/slipway-project/slipway/internal/render/systemd"
)

// forms is the table of what slipway render can write, one row per form.
func forms(l *launch.Launcher) []launch.Form {
	return []launch.Form{
		launch.PlanForm("systemd", "units, mounts and files to lay over a machine's root", systemd.Render),
		{Name: "fleet", Summary: "units with an [X-Fleet] section, and the files that they fetch", Render: func(_ context.Context, p launch.Planned) (render.Rendered, error) {
			return fleet.With(p.Plan, p.Cluster.Config.Units)
		}},
		example(l.FirstBoot("cloud-init", "user data with which a blank machine joins the cluster", "user-data", cloudinit.Render),
			"--name prod --node prod-worker-3 --to out"),
		l.FirstBoot("ignition", "the same for Ignition", "config.ign", ignition.Render),
		example(launch.PlanForm("staticpod", "manifests of static pods, and the files that they read", staticpod.Render), "-f cluster.yaml --to out"),
	}
}

// example gives a form an example in the help of slipway render.
func example(f launch.Form, flags string) launch.Form {
	f.Example = flags
	return f
}
