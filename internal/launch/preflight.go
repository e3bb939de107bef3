// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"strings"

	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/preflight"
	"github.com/slipway-project/slipway/internal/proxy"
)

// Preflight finds every problem of this host at once. A build is needed while the store lacks the release's components, and
// machines of some kind need more of the host than others. With tests, it also checks for what Slipway's own tests need.
func (l *Launcher) Preflight(ctx context.Context, c Cluster, kind machine.InitKind, tests bool) ([]preflight.Finding, error) {
	_, complete, err := l.inStore(ctx, c.Release)
	if err != nil {
		return nil, err
	}
	o := preflight.Options{Root: l.Root, NeedBuild: !complete, Controls: len(c.Config.ControlPlanes()), Systemd: kind == machine.Systemd, Tests: tests}
	for _, p := range c.Config.Pools {
		o.Workers += len(p.Nodes)
	}
	o.Workers -= o.Controls
	if e, err := proxy.Find(l.proxyConfig(c.Name)); err == nil && e.PID == 0 {
		o.APIPort = e.Addr.Port()
	}
	return preflight.Run(ctx, o), nil
}

// preflight refuses to touch a host that cannot run a cluster. Missing packages are installed, and limits raised, unless that is unwanted.
func (u *up) preflight(ctx context.Context) error {
	findings, err := u.Preflight(ctx, u.cluster, u.o.Init, false)
	if err != nil {
		return err
	}
	if len(preflight.Fixable(findings)) > 0 && !u.o.NoInstall {
		u.report(Event{Stage: StagePreflight, Phase: "install", Text: strings.Join(preflight.Fixable(findings), " ")})
		err := preflight.Install(ctx, findings, func(line string) {
			u.report(Event{Stage: StagePreflight, Phase: "install", Text: line})
		})
		if err != nil {
			return &Error{Preflight, err}
		}
		if findings, err = u.Preflight(ctx, u.cluster, u.o.Init, false); err != nil {
			return err
		}
	}
	for _, f := range findings {
		if f.Severity == preflight.Warning {
			u.report(Event{Stage: StagePreflight, Item: f.ID, Phase: string(f.Severity), Text: f.What})
		}
	}
	return refuseProblems(preflight.Problems(findings))
}

func refuseProblems(problems []preflight.Finding) error {
	if len(problems) == 0 {
		return nil
	}
	lines := []string{"this host has " + Plural(len(problems), "problem") + "; nothing has been touched:"}
	for _, f := range problems {
		lines = append(lines, "  "+f.What)
		if f.Detail != "" {
			lines = append(lines, "    "+f.Detail)
		}
		if f.Remedy != "" {
			lines = append(lines, "    remedy: "+f.Remedy)
		}
	}
	return &Error{Preflight, errors.New(strings.Join(lines, "\n"))}
}
