// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/spec"
	"github.com/slipway-project/slipway/internal/launch"
)

func specCommand(e Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "spec",
		Short: "Check, complete and explain cluster specs",
		Long: `Check, complete and explain cluster specs. The shortest one is

  apiVersion: slipway.dev/v1alpha1
  kind: Cluster
  metadata:
    name: dev`,
		Example: `  slipway spec validate -f cluster.yaml
  slipway spec complete | grep audit
  slipway spec explain pools`,
	}
	cmd.AddCommand(validate(e), complete(e), explain(e))
	return cmd
}

func validate(e Env) *cobra.Command {
	var source launch.Source
	var out format
	cmd := &cobra.Command{
		Use:   "validate",
		Short: "Find everything that is wrong with a spec",
		Long:  `Find everything that is wrong with a spec, all at once, with line, column, field and what to write instead. Touches nothing.`,
		Example: `  slipway spec validate -f cluster.yaml
  slipway spec validate -f - < cluster.yaml
  slipway spec validate --name test            # the kept spec of a cluster`,
		Args: noArgs,
	}
	specFlags(e, cmd, &source)
	outputFlag(cmd, &out)
	cmd.RunE = func(*cobra.Command, []string) error {
		c, err := e.Launcher.Load(source)
		if err != nil {
			return err
		}
		nodes := 0
		for _, p := range c.Config.Pools {
			nodes += len(p.Nodes)
		}
		if out != asText {
			return out.object(e.Out, "SpecSummary", map[string]any{"cluster": c.Name, "kubernetes": c.Release.Kubernetes, "nodes": nodes})
		}
		fmt.Fprintf(e.Out, "valid: cluster %s, Kubernetes %s, %s\n", c.Name, c.Release.Kubernetes, launch.Plural(nodes, "node"))
		return nil
	}
	return cmd
}

func complete(e Env) *cobra.Command {
	var source launch.Source
	cmd := &cobra.Command{
		Use:   "complete",
		Short: "Print a spec with every default filled in and every origin named",
		Long: `Print a spec with every flag of every component, each with its origin: default, derived, or user and where. The result is a
spec again; completing it gives the same bytes.`,
		Example: `  slipway spec complete
  slipway spec complete -f cluster.yaml > complete.yaml
  slipway spec complete -f cluster.yaml | grep -n 'user'`,
		Args: noArgs,
	}
	specFlags(e, cmd, &source)
	cmd.RunE = func(*cobra.Command, []string) error {
		c, err := e.Launcher.Load(source)
		if err != nil {
			return err
		}
		_, err = e.Out.Write(config.Print(c.Config))
		return err
	}
	return cmd
}

func explain(e Env) *cobra.Command {
	return &cobra.Command{
		Use:   "explain [FIELD]",
		Short: "Tell what a field of the spec means",
		Long:  `Tell what a field of the spec means, its type, its default and the fields below it. "spec." and "spec.components." may be left out.`,
		Example: `  slipway spec explain
  slipway spec explain networking.podCIDR
  slipway spec explain apiserver.flags`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			text, err := spec.Explain(strings.Join(args, ""))
			if err != nil {
				return usageError{err}
			}
			fmt.Fprintln(e.Out, strings.TrimRight(text, "\n"))
			return nil
		},
	}
}

// specFlags say which spec is meant, and which cluster: the one that --name names, or else the spec's own.
func specFlags(e Env, cmd *cobra.Command, s *launch.Source) {
	nameFlag(e, cmd, &s.Name)
	sourceFlags(cmd, s)
	cmd.PreRun = func(cmd *cobra.Command, _ []string) {
		if s.File != "" && !cmd.Flags().Changed("name") {
			s.Name = ""
		}
	}
}
