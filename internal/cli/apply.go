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
		Short: "Make a cluster of machines that exist, over SSH",
		Long: `Make a cluster of the machines that a spec lists, over SSH, or bring it to its spec. All machines are looked at first, and what is
wrong with any of them is told at once; then it shows what it would do, and asks. It may be stopped at any moment and run again: it
continues. The spec is kept: a later apply without --file uses the one of the last apply.

It logs in with your SSH agent's keys or the usual key files, as root or as a user who may use sudo without a password. Host keys
are those of ~/.ssh/known_hosts, or those that the spec pins. To look at a machine, slipway copies itself to /opt/slipway/bin there.`,
		Example: `  slipway apply -f cluster.yaml                       # looks, shows, asks
  slipway apply -f cluster.yaml --accept-new-host-keys
  slipway apply --name prod --yes --output json 2>events.ndjson`,
		Args: noArgs,
	}
	nameFlag(e, cmd, &o.Source.Name)
	sourceFlags(cmd, &o.Source)
	cmd.Flags().Lookup("file").Usage = "cluster spec; - reads standard input (default: the spec of the last apply)"
	cmd.Flags().BoolVar(&o.AcceptNewHostKeys, "accept-new-host-keys", false, "write unknown host keys to known_hosts instead of refusing them; changed ones are always refused")
	cmd.Flags().DurationVar(&o.Wait, "wait", 10*time.Minute, "how long to wait for the cluster; 0 does not wait")
	yesFlag(cmd, &yes)
	outputFlag(cmd, &out)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if o.Wait < 0 {
			return usageError{errors.New("--wait: use a time, or 0 for not to wait")}
		}
		if o.Source.File != "" && !cmd.Flags().Changed("name") {
			o.Source.Name = "" // the spec's
		}
		o.Version = e.Version
		o.Confirm = func(p bootstrap.ApplyPlan) error {
			applyPlanText(e.Err, p)
			return confirm(e, yes, "Do this?")
		}
		var result bootstrap.Result
		err := showing(cmd.Context(), e, out, func(report func(report.Event)) (err error) {
			o.Report = report
			result, err = bootstrap.Apply(cmd.Context(), *e.Inventory, o)
			return err
		})
		if cmd.Context().Err() != nil {
			return interruptedError("stopped; what runs goes on, and the same command continues")
		}
		var problems ssh.Problems
		if errors.As(err, &problems) && out != asText {
			err = errors.Join(out.object(e.Out, "ApplyProblems", map[string]any{"machines": problems}), err)
		}
		return showUp(e, out, result, bootstrap.UpOptions{Wait: o.Wait}, err)
	}
	return cmd
}

// applyPlanText shows what would be done, a paragraph for each machine that is concerned.
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
