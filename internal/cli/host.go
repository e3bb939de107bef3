// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/bootstrap"
	"github.com/slipway-project/slipway/internal/clusterdir"
	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/operate"
	checks "github.com/slipway-project/slipway/internal/preflight"
	"github.com/slipway-project/slipway/internal/report"
)

// Values of the flag --for.
const forClusters, forTests = "clusters", "tests"

func preflight(e Env) *cobra.Command {
	var name, purpose string
	var install bool
	var kind initKind
	var out format
	cmd := &cobra.Command{
		Use:   "preflight",
		Short: "Check whether this host can run clusters",
		Long: `Check whether this host can run clusters, and list all problems with their remedies. With --install, missing packages are
installed with the package manager of the distribution, as slipway up does. With --for tests, it also checks for the
programs that the tests of Slipway need, as make test and make check do.`,
		Example: `  slipway preflight
  slipway preflight --install
  slipway preflight --install --for tests
  slipway preflight --output json`,
		Args: noArgs,
	}
	nameFlag(e, cmd, &name)
	cmd.Flags().BoolVar(&install, "install", false, "install missing packages")
	cmd.Flags().StringVar(&purpose, "for", forClusters, "what to check for: clusters, or tests (those of Slipway)")
	initFlag(cmd, &kind, "also check what machines with this init need")
	outputFlag(cmd, &out)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cluster, err := e.Inventory.Dir.Load(clusterdir.Source{Name: name})
		if err != nil {
			return err
		}
		if purpose != forClusters && purpose != forTests {
			return usageError{fmt.Errorf("--for %q: use %s or %s", purpose, forClusters, forTests)}
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

// findingsText prints all findings, with the remedy for problems and warnings, and a summary.
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

type versionView struct {
	Slipway  string       `json:"slipway"`
	Go       string       `json:"go"`
	Platform string       `json:"platform"`
	Releases []string     `json:"releases"`
	Cluster  *clusterView `json:"cluster,omitempty"`
}

type clusterView struct {
	Name       string `json:"name"`
	Kubernetes string `json:"kubernetes,omitempty"`
	Agent      string `json:"agent,omitempty"`
}

func version(e Env) *cobra.Command {
	var name string
	var out format
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the versions of slipway, its releases and a cluster",
		Example: `  slipway version
  slipway version --output json`,
		Args: noArgs,
	}
	nameFlag(e, cmd, &name)
	outputFlag(cmd, &out)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		v := versionView{Slipway: e.Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
		for _, r := range catalog.Releases() {
			v.Releases = append(v.Releases, r.Kubernetes)
		}
		if names, err := e.Inventory.Dir.Clusters(); err == nil && slices.Contains(names, name) {
			if s, err := operate.Status(cmd.Context(), *e.Inventory, name); err == nil {
				v.Cluster = clusterOf(s)
			}
		}
		if out != asText {
			return out.object(e.Out, "Version", v)
		}
		fmt.Fprintf(e.Out, "slipway   %s (%s, %s)\n", v.Slipway, v.Go, v.Platform)
		fmt.Fprintf(e.Out, "releases  %s\n", strings.Join(v.Releases, ", "))
		if v.Cluster != nil {
			fmt.Fprintf(e.Out, "cluster   %s: Kubernetes %s, agent %s\n", v.Cluster.Name, orUnknown(v.Cluster.Kubernetes), orUnknown(v.Cluster.Agent))
		}
		return nil
	}
	return cmd
}

func clusterOf(s operate.ClusterStatus) *clusterView {
	c := &clusterView{Name: s.Cluster, Kubernetes: s.Release}
	for _, m := range s.Machines {
		if m.AgentVersion != "" {
			c.Agent = m.AgentVersion
			break
		}
	}
	return c
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

// Completion functions read the state directory and never contact an agent, so that pressing Tab never waits.

func completion(e Env) *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print a shell completion script",
		Long:  `Print a completion script for a shell. It completes commands, flags, clusters, machines and components.`,
		Example: `  source <(slipway completion bash)
  slipway completion bash > /usr/share/bash-completion/completions/slipway
  slipway completion zsh > "${fpath[1]}/_slipway"
  slipway completion fish > ~/.config/fish/completions/slipway.fish`,
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"bash", "zsh", "fish"},
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			switch args[0] {
			case "zsh":
				return root.GenZshCompletion(e.Out)
			case "fish":
				return root.GenFishCompletion(e.Out, true)
			}
			return root.GenBashCompletionV2(e.Out, true)
		},
	}
}

type completer = cobra.CompletionFunc

func clusterNames(e Env) completer {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		names, _ := e.Inventory.Dir.Clusters()
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// machineNames completes the names of the cluster's machines.
func machineNames(e Env, cluster *string) completer {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 && cmd.Name() == "exec" {
			return nil, cobra.ShellCompDirectiveDefault
		}
		names, _ := e.Inventory.Names(cmd.Context(), *cluster)
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// oneMachine completes the name of a machine or node, for commands that take exactly one.
func oneMachine(e Env, cluster *string) completer {
	names := machineNames(e, cluster)
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return names(cmd, args, typed)
	}
}

func waitTargets(e Env) completer {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		targets := []string{"cluster"}
		name, _ := cmd.Flags().GetString("name")
		machines, _ := e.Inventory.Names(cmd.Context(), name)
		for _, m := range machines {
			targets = append(targets, "node/"+m)
		}
		return targets, cobra.ShellCompDirectiveNoFileComp
	}
}

// components completes the names of components that have a log on the machine.
func components(e Env, cluster, machine *string) completer {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		files, _ := operate.LogFiles(cmd.Context(), *e.Inventory, *cluster, *machine)
		return slices.Sorted(maps.Keys(files)), cobra.ShellCompDirectiveNoFileComp
	}
}

func minors(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var out []string
	for _, r := range catalog.Releases() {
		out = append(out, r.Minor())
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}
