// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/launch"
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
			made, err := launch.ImportFleet(name, files)
			for _, n := range made.Notes {
				fmt.Fprintln(e.Err, "note: "+n)
			}
			if made.Spec != nil {
				_, _ = e.Out.Write(made.Spec) // New's writer remembers
			}
			var problems launch.ProblemsError
			if errors.As(err, &problems) {
				return fmt.Errorf("the spec has to be mended: %w", err)
			}
			return err
		},
	}
	cmd.Flags().Var((*clusterName)(&name), "name", "name of the cluster in the spec")
	return cmd
}
