// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/bootstrap"
	"github.com/slipway-project/slipway/internal/clusterdir"
	"github.com/slipway-project/slipway/internal/core/compose"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/report"
)

func planCommand(e Env) *cobra.Command {
	var source clusterdir.Source
	var node string
	var out format
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Show what a node must have, or what up would do to it",
		Long: `Show everything one node must have, in an order in which each item comes after what it needs. Nothing is touched. What
differs from that on the machines now, slipway diff says.`,
		Example: `  slipway plan
  slipway plan -f cluster.yaml
  slipway plan --node dev-main-0 --output json`,
		Args: noArgs,
	}
	specFlags(e, cmd, &source)
	nodeFlag(e, cmd, &node, &source.Name)
	outputFlag(cmd, &out)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		p, err := bootstrap.PlanNode(cmd.Context(), *e.Inventory, source, node)
		if err != nil {
			return err
		}
		for _, a := range p.Assumed {
			fmt.Fprintln(e.Err, "note: "+a)
		}
		if out != asText {
			return out.object(e.Out, "Plan", p.Plan)
		}
		planText(e.Out, p.Plan)
		return nil
	}
	return cmd
}

func planText(w io.Writer, p plan.Plan) {
	fmt.Fprintf(w, "node %s of cluster %s: Kubernetes %s, %s\n\n", p.Node, p.Cluster, p.Release, report.Count(len(p.Entries), "item"))
	for _, entry := range p.Entries {
		fmt.Fprintln(w, entry.Ref)
		if len(entry.Needs) > 0 {
			fmt.Fprintln(w, wrap("    after ", refs(entry.Needs)))
		}
	}
}

func refs(list []plan.Ref) []string {
	out := make([]string, 0, len(list))
	for _, r := range list {
		out = append(out, r.String())
	}
	return out
}

// wrap joins words with commas in lines of about 120 characters, each as far to the right as the first.
func wrap(head string, words []string) string {
	var b strings.Builder
	b.WriteString(head)
	at := len(head)
	for i, word := range words {
		if i < len(words)-1 {
			word += ","
		}
		if at > len(head) && at+len(word) > 118 {
			b.WriteString("\n" + strings.Repeat(" ", len(head)))
			at = len(head)
		} else if at > len(head) {
			b.WriteByte(' ')
			at++
		}
		b.WriteString(word)
		at += len(word)
	}
	return b.String()
}

// Exit codes of diff, as of diff(1).
const (
	exitDiffers = 1
	exitTrouble = 2
)

func diffCommand(e Env) *cobra.Command {
	var source clusterdir.Source
	var out format
	cmd := &cobra.Command{
		Use:   "diff",
		Short: "Show what an edited spec would change, on which machines, and what that restarts",
		Long: `Compare a running cluster with a spec, and show each step that slipway up would take on each machine, why, and what it means:

  live      nothing that runs is touched
  restart   a unit is restarted or ended, on each machine as soon as it has its plan; pods run on
  rolling   a unit of the control plane is restarted, on one machine at a time
  refused   an existing cluster cannot change it: the reason, and what to do instead; slipway up refuses the whole spec

Without a spec the cluster is compared with the one that it has. Nothing is touched.

Exit codes: 0 nothing differs, 1 something does, 2 trouble.`,
		Example: `  slipway diff -f cluster.yaml
  slipway diff --name test
  slipway diff -f cluster.yaml --output json | jq -r '.machines[].steps[] | select(.effect == "rolling") | .ref'`,
		Args: noArgs,
	}
	specFlags(e, cmd, &source)
	outputFlag(cmd, &out)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		d, err := bootstrap.DiffCluster(cmd.Context(), *e.Inventory, source)
		if err == nil && out != asText {
			err = out.object(e.Out, "Difference", d)
		}
		switch {
		case cmd.Context().Err() != nil:
			return cmd.Context().Err()
		case err != nil:
			fmt.Fprintln(e.Err, "slipway: "+err.Error()+rootHint(err, os.Geteuid()))
			return exitError(exitTrouble)
		}
		if out == asText {
			diffText(e.Out, d)
		}
		if d.None() {
			return nil
		}
		return exitError(exitDiffers)
	}
	return cmd
}

func diffText(w io.Writer, d bootstrap.Difference) {
	if d.None() {
		fmt.Fprintf(w, "cluster %s has everything that its spec wants: nothing to do\n", d.Cluster)
		return
	}
	for _, n := range d.Refused {
		fmt.Fprintf(w, "! refused  %s\n             %s\n", n.What, n.Instead)
	}
	if len(d.Refused) > 0 {
		fmt.Fprintln(w, "\nslipway up refuses this spec, and changes nothing")
		return
	}
	count := map[plan.Effect]int{}
	for _, m := range d.Machines {
		if m.None() {
			continue
		}
		fmt.Fprintf(w, "%s\n", m.Machine)
		machineDiff(w, m)
		for _, s := range m.Steps {
			count[s.Effect]++
		}
	}
	fmt.Fprintf(w, "\n%d live, %d restart, %d rolling; slipway up takes the steps\n", count[plan.Live], count[plan.Restart], count[plan.Rolling])
}

func machineDiff(w io.Writer, m bootstrap.MachineDifference) {
	if m.New {
		fmt.Fprintln(w, "  + live     the machine\n               it is made, and joins")
	}
	for _, s := range m.Steps {
		fmt.Fprintf(w, "  %s %-8s %s %s\n               %s\n", sign(s.Verb), s.Effect, s.Verb, s.Ref, s.Why)
	}
	for _, s := range m.Unknown {
		fmt.Fprintf(w, "  ? unknown  %s\n               %s\n", s.Ref, s.Why)
	}
	if m.Objects {
		fmt.Fprintln(w, "  ~ live     apply the cluster's own objects and records\n               they differ from those that were applied last")
	}
}

func sign(verb string) string {
	switch plan.Verb(verb) {
	case plan.Create:
		return "+"
	case plan.Remove:
		return "-"
	case plan.Replace:
	}
	return "~"
}

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
