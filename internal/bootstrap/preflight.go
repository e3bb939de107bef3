// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"errors"
	"strings"

	"github.com/slipway-project/slipway/internal/clusterdir"
	"github.com/slipway-project/slipway/internal/inventory"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/preflight"
	"github.com/slipway-project/slipway/internal/proxy"
	"github.com/slipway-project/slipway/internal/report"
)

// Preflight finds everything that keeps this host from running a cluster of local machines. The host also needs tools to build
// components while the store lacks the release's, and more for machines that boot with systemd. With tests, it also
// checks for what Slipway's own tests need.
func Preflight(ctx context.Context, dir clusterdir.Dir, c clusterdir.Cluster, kind machine.InitKind, tests bool) ([]preflight.Finding, error) {
	_, complete, err := dir.Components().Lookup(ctx, c.Release)
	if err != nil {
		return nil, err
	}
	o := preflight.Options{Root: dir.Root, NeedBuild: !complete, Controls: len(c.Config.ControlPlanes()), Systemd: kind == machine.Systemd, Tests: tests}
	for _, p := range c.Config.Pools {
		o.Workers += len(p.Nodes)
	}
	o.Workers -= o.Controls
	if e, err := proxy.Find(dir.Proxy(c.Name)); err == nil && e.PID == 0 {
		o.APIPort = e.Addr.Port()
	}
	return preflight.Run(ctx, o), nil
}

// preflightHost refuses a host that cannot run the cluster. It installs missing packages and raises limits unless the options
// forbid that.
func preflightHost(ctx context.Context, inv inventory.Inventory, c clusterdir.Cluster, o UpOptions, to report.Func) error {
	findings, err := Preflight(ctx, inv.Dir, c, o.Init, false)
	if err != nil {
		return err
	}
	if len(preflight.Fixable(findings)) > 0 && !o.NoInstall {
		install := func(line string) { to(report.Event{Stage: report.StagePreflight, Phase: "install", Text: line}) }
		install(strings.Join(preflight.Fixable(findings), " "))
		if err := preflight.Install(ctx, findings, install); err != nil {
			return &report.Error{Kind: report.Preflight, Err: err}
		}
		if findings, err = Preflight(ctx, inv.Dir, c, o.Init, false); err != nil {
			return err
		}
	}
	for _, f := range findings {
		if f.Severity == preflight.Warning {
			to(report.Event{Stage: report.StagePreflight, Item: f.ID, Phase: string(f.Severity), Text: f.What})
		}
	}
	return problemsError(preflight.Problems(findings))
}

func problemsError(problems []preflight.Finding) error {
	if len(problems) == 0 {
		return nil
	}
	lines := []string{"this host has " + report.Count(len(problems), "problem") + "; nothing has been changed:"}
	for _, f := range problems {
		lines = append(lines, "  "+f.What)
		if f.Detail != "" {
			lines = append(lines, "    "+f.Detail)
		}
		if f.Remedy != "" {
			lines = append(lines, "    remedy: "+f.Remedy)
		}
	}
	return &report.Error{Kind: report.Preflight, Err: errors.New(strings.Join(lines, "\n"))}
}
