// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/bootstrap"
	"github.com/slipway-project/slipway/internal/report"
)

func down(e Env) *cobra.Command {
	var name string
	var out format
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Remove a local cluster and everything it made",
		Long: `Remove a local cluster and everything it made: processes, mounts, namespaces, cgroups, files, and nothing else.
A cluster of machines that exist (slipway apply) is only forgotten, and only when its machines have left it. The component store stays, so that the next up takes seconds; --purge drops it too. Nothing is asked.`,
		Example: `  slipway down
  slipway down --name test
  slipway down --purge       # the built components too`,
		Args: noArgs,
	}
	nameFlag(e, cmd, &name)
	outputFlag(cmd, &out)
	purge := cmd.Flags().Bool("purge", false, "drop the component store too, unless another cluster uses it")
	keep := cmd.Flags().Bool("keep-store", true, "keep the component store (the default; see --purge)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("keep-store") && cmd.Flags().Changed("purge") && *keep == *purge {
			return usageError{errors.New("use one of --keep-store and --purge")}
		}
		drop := *purge || !*keep
		names, err := e.Inventory.Dir.Clusters()
		if err != nil {
			return err
		}
		exists := slices.Contains(names, name)
		if !exists && !drop && out != asText {
			return out.object(e.Out, "DownResult", downView{Cluster: name})
		}
		if !exists && !drop {
			fmt.Fprintf(e.Out, "nothing to remove: there is no cluster %s%s\n", name, others(names))
			return nil
		}
		far, err := e.Inventory.IsRemote(name)
		if err != nil {
			return err
		}
		machines, err := machineCount(cmd, e, name, exists)
		if err != nil {
			return err
		}
		err = showing(cmd.Context(), e, out, func(report func(report.Event)) error {
			return bootstrap.Down(cmd.Context(), *e.Inventory, name, drop, report)
		})
		if cmd.Context().Err() != nil {
			return interruptedError("stopped half-way: run " + withName("down", name) + " again")
		}
		if err != nil {
			return err
		}
		if out != asText {
			return out.object(e.Out, "DownResult", downView{name, exists, machines, drop})
		}
		switch {
		case far:
			fmt.Fprintf(e.Out, "forgot cluster %s: its %s are in no cluster and stay as they are\n", name, report.Count(machines, "machine"))
			return nil
		case exists:
			fmt.Fprintf(e.Out, "removed cluster %s: %s with all processes, mounts, networks and files\n", name, report.Count(machines, "machine"))
		}
		if drop {
			fmt.Fprintln(e.Out, "removed the component store")
		}
		return nil
	}
	return cmd
}

// downView is the result of down for programs.
type downView struct {
	Cluster      string `json:"cluster"`
	Removed      bool   `json:"removed"` // false: there was none
	Machines     int    `json:"machines"`
	StoreRemoved bool   `json:"storeRemoved"`
}

func machineCount(cmd *cobra.Command, e Env, name string, exists bool) (int, error) {
	if !exists {
		return 0, nil
	}
	machines, err := e.Inventory.Names(cmd.Context(), name)
	return len(machines), err
}

func others(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return " (there is " + strings.Join(names, ", ") + ")"
}
