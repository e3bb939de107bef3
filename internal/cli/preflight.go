// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/launch"
	checks "github.com/slipway-project/slipway/internal/preflight"
)

func preflight(e Env) *cobra.Command {
	var name string
	var install bool
	var kind initKind
	var out format
	cmd := &cobra.Command{
		Use:   "preflight",
		Short: "Check whether this host can run clusters, and what to do if not",
		Long: `Check whether this host can run clusters. Everything that is in the way is told at once, each with its remedy. With
--install, missing packages are installed with the distribution's package manager. slipway up does the same by itself.`,
		Example: `  slipway preflight
  slipway preflight --install
  slipway preflight --output json`,
		Args: noArgs,
	}
	nameFlag(e, cmd, &name)
	cmd.Flags().BoolVar(&install, "install", false, "install missing packages")
	initFlag(cmd, &kind, "check also what machines with this init need")
	outputFlag(cmd, &out)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cluster, err := e.Launcher.Load(launch.Source{Name: name})
		if err != nil {
			return err
		}
		findings, err := e.Launcher.Preflight(cmd.Context(), cluster, kind.kind)
		if err != nil {
			return err
		}
		if install && len(checks.Fixable(findings)) > 0 {
			if err := checks.Install(cmd.Context(), findings, func(line string) { fmt.Fprintln(e.Err, line) }); err != nil {
				return &launch.Error{Kind: launch.Preflight, Err: err}
			}
			before := findings
			if findings, err = e.Launcher.Preflight(cmd.Context(), cluster, kind.kind); err != nil {
				return err
			}
			findings = checks.MarkFixed(before, findings)
		}
		problems := checks.Problems(findings)
		if out != asText {
			err = out.object(e.Out, "Preflight", map[string]any{"ok": len(problems) == 0, "findings": findings})
		} else {
			findingsText(e.Out, findings, install)
		}
		if err == nil && len(problems) > 0 {
			return exitError(exitPreflight)
		}
		return errors.Join(err, cmd.Context().Err())
	}
	return cmd
}

func findingsText(w io.Writer, findings []checks.Finding, installed bool) {
	warnings := 0
	for _, f := range findings {
		fmt.Fprintf(w, "%-8s %s\n", f.Severity, f.What)
		if f.Severity == checks.OK || f.Severity == checks.Fixed {
			continue
		}
		if f.Severity == checks.Warning {
			warnings++
		}
		if f.Detail != "" {
			fmt.Fprintf(w, "         %s\n", f.Detail)
		}
		if f.Remedy != "" {
			fmt.Fprintf(w, "         remedy: %s\n", f.Remedy)
		}
	}
	problems := checks.Problems(findings)
	fmt.Fprintln(w)
	switch {
	case len(problems) == 0:
		fmt.Fprintf(w, "this host can run clusters (%s, %s)\n", launch.Plural(len(findings), "check"), launch.Plural(warnings, "warning"))
	case len(checks.Fixable(problems)) > 0 && !installed:
		fmt.Fprintf(w, "%s; slipway preflight --install installs what is missing\n", launch.Plural(len(problems), "problem"))
	default:
		fmt.Fprintf(w, "%s\n", launch.Plural(len(problems), "problem"))
	}
}
