// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/bootstrap"
	"github.com/slipway-project/slipway/internal/clusterdir"
	checks "github.com/slipway-project/slipway/internal/preflight"
	"github.com/slipway-project/slipway/internal/report"
)

// The purposes of --for.
const forClusters, forTests = "clusters", "tests"

func preflight(e Env) *cobra.Command {
	var name, purpose string
	var install bool
	var kind initKind
	var out format
	cmd := &cobra.Command{
		Use:   "preflight",
		Short: "Check whether this host can run clusters, and what to do if not",
		Long: `Check whether this host can run clusters. All problems are listed at once, each with its remedy. With --install, missing
packages are installed with the distribution's package manager; slipway up does the same by itself. With --for tests, the
programs that Slipway's own tests run are checked, too; make test and make check do this first.`,
		Example: `  slipway preflight
  slipway preflight --install
  slipway preflight --install --for tests
  slipway preflight --output json`,
		Args: noArgs,
	}
	nameFlag(e, cmd, &name)
	cmd.Flags().BoolVar(&install, "install", false, "install missing packages")
	cmd.Flags().StringVar(&purpose, "for", forClusters, "what this host is wanted for: clusters, or tests (Slipway's own)")
	initFlag(cmd, &kind, "check also what machines with this init need")
	outputFlag(cmd, &out)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cluster, err := e.Inventory.Dir.Load(clusterdir.Source{Name: name})
		if err != nil {
			return err
		}
		if purpose != forClusters && purpose != forTests {
			return usageError{fmt.Errorf("--for: unknown purpose %q (want %s or %s)", purpose, forClusters, forTests)}
		}
		findings, err := bootstrap.Preflight(cmd.Context(), e.Inventory.Dir, cluster, kind.kind, purpose == forTests)
		if err != nil {
			return err
		}
		if fixable := checks.Fixable(findings); install && len(fixable) > 0 {
			for _, f := range checks.Problems(findings) {
				fmt.Fprintf(e.Err, "%s\n", f.What)
			}
			fmt.Fprintf(e.Err, "installing %s\n", strings.Join(fixable, " "))
			if err := checks.Install(cmd.Context(), findings, func(line string) { fmt.Fprintln(e.Err, line) }); err != nil {
				return &report.Error{Kind: report.Preflight, Err: err}
			}
			before := findings
			if findings, err = bootstrap.Preflight(cmd.Context(), e.Inventory.Dir, cluster, kind.kind, purpose == forTests); err != nil {
				return err
			}
			findings = checks.MarkFixed(before, findings)
		}
		problems := checks.Problems(findings)
		if out != asText {
			err = out.object(e.Out, "Preflight", map[string]any{"ok": len(problems) == 0, "findings": findings})
		} else {
			findingsText(e.Out, findings, purpose, install)
		}
		if err == nil && len(problems) > 0 {
			return exitError(exitPreflight)
		}
		return errors.Join(err, cmd.Context().Err())
	}
	return cmd
}

// findingsText lists all findings, those that need attention with their remedy, and ends with a summary.
func findingsText(w io.Writer, findings []checks.Finding, purpose string, installed bool) {
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
		fmt.Fprintf(w, "this host can run %s (%s, %s)\n", purpose, report.Count(len(findings), "check"), report.Count(warnings, "warning"))
	case len(checks.Fixable(problems)) > 0 && !installed:
		flag := ""
		if purpose != forClusters {
			flag = " --for " + purpose
		}
		fmt.Fprintf(w, "%s; run slipway preflight --install%s to install what is missing\n", report.Count(len(problems), "problem"), flag)
	default:
		fmt.Fprintf(w, "%s\n", report.Count(len(problems), "problem"))
	}
}
