// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/bootstrap"
	"github.com/slipway-project/slipway/internal/provider/ssh"
	"github.com/slipway-project/slipway/internal/report"
)

func apply(e Env) *cobra.Command {
	var o bootstrap.ApplyOptions
	var out format
	var yes bool
	cmd := &cobra.Command{
		Use:   "apply [-f FILE]",
		Short: "Create a cluster from existing machines over SSH, or update it",
		Long: `Create a cluster from the machines that a spec lists, over SSH, or update it to match the spec. Apply first checks all
machines and reports every problem it finds. It then shows what it would do and asks for confirmation. You can
interrupt it at any time: run the same command again to continue. Slipway stores the spec, and a later apply
without --file uses the stored one.

Apply logs in with the keys of your SSH agent or the usual key files, as root or as a user with passwordless sudo.
Host keys must be in ~/.ssh/known_hosts or in the spec. To check a machine, slipway copies itself to
/opt/slipway/bin on that machine.`,
		Example: `  slipway apply -f cluster.yaml                       # check, show the plan, ask
  slipway apply -f cluster.yaml --accept-new-host-keys
  slipway apply --name prod --yes --output json 2>events.ndjson`,
		Args: noArgs,
	}
	nameFlag(e, cmd, &o.Source.Name)
	sourceFlags(cmd, &o.Source)
	cmd.Flags().Lookup("file").Usage = "cluster spec; - reads standard input (default: the stored spec)"
	cmd.Flags().BoolVar(&o.AcceptNewHostKeys, "accept-new-host-keys", false, "add unknown host keys to known_hosts; changed host keys are always refused")
	cmd.Flags().DurationVar(&o.Wait, "wait", 10*time.Minute, "how long to wait until the cluster is ready; 0 does not wait")
	yesFlag(cmd, &yes)
	outputFlag(cmd, &out)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if o.Wait < 0 {
			return usageError{errors.New("--wait must be a positive duration, or 0 to not wait")}
		}
		if o.Source.File != "" && !cmd.Flags().Changed("name") {
			o.Source.Name = "" // the spec's
		}
		o.Version = e.Version
		o.Confirm = func(p bootstrap.ApplyPlan) error {
			applyPlanText(e.Err, p)
			return confirm(e, yes, "Continue?")
		}
		var result bootstrap.Result
		err := showing(cmd.Context(), e, out, func(report func(report.Event)) (err error) {
			o.Report = report
			result, err = bootstrap.Apply(cmd.Context(), *e.Inventory, o)
			return err
		})
		if cmd.Context().Err() != nil {
			return interruptedError("interrupted; machines keep working, run the same command again to continue")
		}
		var problems ssh.Problems
		if errors.As(err, &problems) && out != asText {
			err = errors.Join(out.object(e.Out, "ApplyProblems", map[string]any{"machines": problems}), err)
		}
		return showUp(e, out, result, bootstrap.UpOptions{Wait: o.Wait}, err)
	}
	return cmd
}

// applyPlanText prints what apply would do, with one paragraph per machine that it would change.
func applyPlanText(w io.Writer, p bootstrap.ApplyPlan) {
	fmt.Fprintf(w, "\ncluster %s, Kubernetes %s:\n", p.Cluster, p.Release)
	idle := 0
	for _, m := range p.Machines {
		if len(m.Do) == 0 {
			idle++
			continue
		}
		fmt.Fprintf(w, "  %s (%s, %s)\n", m.Name, m.Address, strings.Join(m.Roles, " and "))
		for _, line := range m.Do {
			fmt.Fprintf(w, "    %s\n", line)
		}
		for _, s := range m.Steps {
			fmt.Fprintf(w, "      %-8s %s: %s (%s)\n", orDash(s.Verb), s.Ref, orDash(string(s.Effect)), s.Why)
		}
	}
	if idle > 0 {
		fmt.Fprintf(w, "  %s: nothing to do\n", report.Count(idle, "more machine"))
	}
	fmt.Fprintln(w)
}
