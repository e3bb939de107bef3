// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/clusterdir"
	"github.com/slipway-project/slipway/internal/core/compose"
)

func units(e Env) *cobra.Command {
	var source clusterdir.Source
	var out format
	cmd := &cobra.Command{
		Use:   "units",
		Short: "Show where the spec's own units run, and why one runs nowhere",
		Long: `Show on which machines the units of the spec run by their rules, or would with this spec, and for each that runs nowhere why no
machine will do. Asks no machine: slipway status tells how they are.`,
		Example: `  slipway units
  slipway units -f edited.yaml
  slipway units --output json`,
		Args: noArgs,
	}
	specFlags(e, cmd, &source)
	outputFlag(cmd, &out)
	cmd.RunE = func(*cobra.Command, []string) error {
		c, err := e.Inventory.Dir.Load(source)
		if err != nil {
			return err
		}
		places := compose.Placements(c.Config)
		if out != asText {
			return out.object(e.Out, "UnitPlaces", map[string]any{"cluster": c.Name, "units": places})
		}
		if len(places) == 0 {
			fmt.Fprintf(e.Out, "the spec of %s has no units: see slipway spec explain units\n", c.Name)
			return nil
		}
		rows := [][]string{{"UNIT", "MACHINES", "WHY NOWHERE"}}
		for _, p := range places {
			rows = append(rows, []string{p.Unit, orDash(strings.Join(p.Machines, ",")), orDash(p.Why)})
		}
		table(e.Out, rows)
		return nil
	}
	return cmd
}
