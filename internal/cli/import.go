// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/clusterdir"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/spec"
	"github.com/slipway-project/slipway/internal/render/fleet"
)

func importCommand(e Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "import",
		Short: "Make a spec of what was written for another program",
		Long:  `Make a spec of what was written for another program. It is printed; nothing is touched.`,
		Example: `  slipway import fleet *.service > cluster.yaml
  slipway import fleet --name prod web@1.service web@2.service`,
	}
	cmd.AddCommand(importFleet(e))
	return cmd
}

func importFleet(e Env) *cobra.Command {
	name := defaultName
	cmd := &cobra.Command{
		Use:   "fleet FILE...",
		Short: "Make a spec of fleet's unit files",
		Long: `Read unit files with an [X-Fleet] section and print a spec whose units do the same by the same rules. What is left out is told
with its line. An option of placement that is not known is an error: without it the unit would run anywhere. Of a template give its
instances: web@1.service, which may be a link to web@.service.`,
		Example: `  slipway import fleet *.service > cluster.yaml
  slipway import fleet --name prod web@1.service web@2.service`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, files []string) error {
			text, notes, err := fleetSpec(name, files)
			for _, n := range notes {
				fmt.Fprintln(e.Err, "note: "+n)
			}
			if text != nil {
				_, _ = e.Out.Write(text) // New's writer remembers
			}
			var problems clusterdir.ProblemsError
			if errors.As(err, &problems) {
				return fmt.Errorf("fix the spec: %w", err)
			}
			return err
		},
	}
	cmd.Flags().Var((*clusterName)(&name), "name", "name of the cluster in the spec")
	return cmd
}

// fleetSpec makes a spec of units that were written for fleet, and notes what is left out. It reports the errors of all files at
// once. A spec that needs to be fixed is returned as well, with its problems as a report.Error of kind InvalidSpec.
func fleetSpec(cluster string, files []string) (text []byte, notes []string, err error) {
	var errs []error
	var units []spec.Unit
	for _, file := range files {
		unit, err := os.ReadFile(file)
		if err != nil {
			errs = append(errs, fmt.Errorf("read unit: %w", err))
			continue
		}
		u, left, err := fleet.Decode(filepath.Clean(file), string(unit))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		notes, units = append(notes, left...), append(units, u)
	}
	if len(errs) > 0 {
		return nil, nil, errors.Join(errs...)
	}
	text = config.PrintUnits(cluster, units)
	_, err = clusterdir.Complete("the imported spec", text, "")
	return text, notes, err
}
