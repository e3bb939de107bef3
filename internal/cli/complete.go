// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/operate"
)

// Completion reads folders and never asks an agent, so that pressing Tab never waits.

func completion(e Env) *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print the completion script of a shell",
		Long:  `Print the completion script of a shell. It completes commands, flags, clusters, machines and components.`,
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

// machineNames completes one machine of the cluster that --name names.
func machineNames(e Env, cluster *string) completer {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 && cmd.Name() == "exec" {
			return nil, cobra.ShellCompDirectiveDefault
		}
		names, _ := e.Inventory.Names(cmd.Context(), *cluster)
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// oneMachine completes the only argument: a machine, or the node of that name.
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

// components completes what has a log.
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
