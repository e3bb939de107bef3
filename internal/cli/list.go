// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/operate"
)

type listItem struct {
	Name    string `json:"name"`
	Ready   bool   `json:"ready"`
	Verdict string `json:"verdict"`
}

func clusters(e Env) *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the clusters of this host",
		Example: `  slipway list
  slipway list --output json`,
		Args: noArgs,
	}
	outputFlag(cmd, &out)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		names, err := e.Inventory.Dir.Clusters()
		if err != nil {
			return err
		}
		items := []listItem{}
		for _, name := range names {
			s, err := operate.Status(cmd.Context(), *e.Inventory, name)
			if err != nil {
				s.Verdict = err.Error()
			}
			items = append(items, listItem{name, s.Ready, s.Verdict})
		}
		if out != asText {
			return out.object(e.Out, "ClusterList", map[string]any{"items": items})
		}
		if len(items) == 0 {
			fmt.Fprintln(e.Out, "no clusters: make one with slipway up")
			return nil
		}
		rows := [][]string{{"NAME", "VERDICT"}}
		for _, i := range items {
			rows = append(rows, []string{i.Name, i.Verdict})
		}
		table(e.Out, rows)
		return nil
	}
	return cmd
}
