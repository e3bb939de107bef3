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
		Short: "Show the plan of a node",
		Long: `Show the plan of a node: everything that the node must have, each item after the items it needs. Plan changes nothing.
To compare a running cluster with a spec, use slipway diff.`,
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

// wrap joins words with commas in lines of up to 120 characters. Later lines are indented like the first word.
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

// Exit codes of slipway diff, as for diff(1).
const (
	exitDiffers = 1
	exitTrouble = 2
)

func diffCommand(e Env) *cobra.Command {
	var source clusterdir.Source
	var out format
	cmd := &cobra.Command{
		Use:   "diff",
		Short: "Show what slipway up would change",
		Long: `Compare a running cluster with a spec. Diff shows each step that slipway up would take on each machine, the reason, and
the effect:

  live      no running component is affected
  restart   a unit is restarted or stopped on each machine as soon as the machine has its plan; pods keep running
  rolling   a control plane component is restarted, one machine at a time
  refused   the field cannot be changed in an existing cluster; slipway up refuses the whole spec

Without --file, the cluster is compared with its stored spec. Diff changes nothing.

Exit codes: 0 no differences, 1 differences, 2 error.`,
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
		fmt.Fprintf(w, "cluster %s matches its spec: nothing to do\n", d.Cluster)
		return
	}
	for _, n := range d.Refused {
		fmt.Fprintf(w, "! refused  %s\n             %s\n", n.What, n.Instead)
	}
	if len(d.Refused) > 0 {
		fmt.Fprintln(w, "\nslipway up would refuse this spec and change nothing")
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
	fmt.Fprintf(w, "\n%d live, %d restart, %d rolling; run slipway up to make these changes\n", count[plan.Live], count[plan.Restart], count[plan.Rolling])
}

func machineDiff(w io.Writer, m bootstrap.MachineDifference) {
	if m.New {
		fmt.Fprintln(w, "  + live     create the machine\n               it does not exist yet, and joins the cluster")
	}
	for _, s := range m.Steps {
		fmt.Fprintf(w, "  %s %-8s %s %s\n               %s\n", sign(s.Verb), s.Effect, s.Verb, s.Ref, s.Why)
	}
	for _, s := range m.Unknown {
		fmt.Fprintf(w, "  ? unknown  %s\n               %s\n", s.Ref, s.Why)
	}
	if m.Objects {
		fmt.Fprintln(w, "  ~ live     apply the cluster's objects and records\n               they differ from those that were applied last")
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
		Short: "Show where the units of the spec are placed",
		Long: `Show on which machines the placement rules put the units of the spec, and why a unit is not placed on any machine. Units
does not contact the machines: see slipway status for their state.`,
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
		placements := compose.Placements(c.Config)
		if out != asText {
			return out.object(e.Out, "UnitPlacements", map[string]any{"cluster": c.Name, "units": placements})
		}
		if len(placements) == 0 {
			fmt.Fprintf(e.Out, "the spec of cluster %s has no units: see slipway spec explain units\n", c.Name)
			return nil
		}
		rows := [][]string{{"UNIT", "MACHINES", "REASON IF NOT PLACED"}}
		for _, p := range placements {
			rows = append(rows, []string{p.Unit, orDash(strings.Join(p.Machines, ",")), orDash(p.Why)})
		}
		table(e.Out, rows)
		return nil
	}
	return cmd
}
