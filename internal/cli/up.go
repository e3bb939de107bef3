// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/launch"
)

func up(e Env) *cobra.Command {
	var o launch.UpOptions
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Create a local cluster, or bring it to its spec",
		Args:  cobra.NoArgs,
	}
	nameFlag(cmd, &o.Source.Name)
	cmd.Flags().StringVarP(&o.Source.File, "file", "f", "", "cluster spec; - reads standard input (default: the spec of the last up, or a cluster of one machine)")
	cmd.Flags().StringVar(&o.Source.Version, "kubernetes-version", "", "Kubernetes minor, such as 1.36")
	cmd.Flags().BoolVar(&o.NoInstall, "no-install", false, "report missing packages, install nothing")
	cmd.Flags().DurationVar(&o.Wait, "wait", 5*time.Minute, "how long to wait for the cluster; 0 does not wait")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o.Report = func(ev launch.Event) {
			fmt.Fprintf(e.Err, "%7.2fs %-9s %-40s %-9s %s\n", ev.Elapsed.Seconds(), ev.Stage, ev.Item, ev.Phase, ev.Text)
		}
		result, err := e.Launcher.Up(cmd.Context(), o)
		if err != nil {
			return err
		}
		for _, m := range result.Milestones {
			fmt.Fprintf(e.Out, "%-22s %6.2f s\n", m.Name, m.At.Seconds())
		}
		fmt.Fprintf(e.Out, "changed %v, %d steps, %.2f s, kubeconfig %s\n", result.Changed, result.Steps, result.Elapsed.Seconds(), result.Kubeconfig)
		return nil
	}
	return cmd
}

func down(e Env) *cobra.Command {
	var name string
	cmd := &cobra.Command{Use: "down", Short: "Remove a local cluster and everything it made", Args: cobra.NoArgs}
	nameFlag(cmd, &name)
	purge := cmd.Flags().Bool("purge", false, "drop the component store too")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return e.Launcher.Down(cmd.Context(), name, *purge, func(launch.Event) {})
	}
	return cmd
}
