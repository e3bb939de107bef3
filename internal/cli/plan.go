// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/launch"
)

func planCommand(e Env) *cobra.Command {
	var source launch.Source
	var node string
	var diff bool
	var out format
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Show what a node must have, or what up would do to it",
		Long: `Show everything one node must have, in an order in which each item comes after what it needs, or, with --diff, the steps
that slipway up would take on the running machine and the reason for each. Nothing is touched.`,
		Example: `  slipway plan
  slipway plan -f cluster.yaml --diff
  slipway plan --node dev-main-0 --output json`,
		Args: noArgs,
	}
	specFlags(e, cmd, &source)
	cmd.Flags().StringVar(&node, "node", "", "node (default: the first one)")
	cmd.Flags().BoolVar(&diff, "diff", false, "compare with the running machine")
	outputFlag(cmd, &out)
	_ = cmd.RegisterFlagCompletionFunc("node", machineNames(e, &source.Name))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		p, err := e.Launcher.Plan(cmd.Context(), source, node)
		if err != nil {
			return err
		}
		if diff {
			return showDiff(cmd, e, out, p)
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

func showDiff(cmd *cobra.Command, e Env, out format, p launch.Planned) error {
	d, err := e.Launcher.Diff(cmd.Context(), p)
	if err != nil {
		return err
	}
	if out != asText {
		return out.object(e.Out, "Difference", d)
	}
	if d.None() {
		fmt.Fprintf(e.Out, "%s has everything that its plan wants: nothing to do\n", p.Plan.Node)
		return nil
	}
	for _, s := range d.Steps {
		fmt.Fprintf(e.Out, "%s %-8s %s\n             %s\n", sign(s.Verb), s.Verb, s.Ref, s.Why)
	}
	for _, s := range d.Unknown {
		fmt.Fprintf(e.Out, "? unknown  %s\n             %s\n", s.Ref, s.Why)
	}
	if d.Objects {
		fmt.Fprintln(e.Out, "~ apply    the cluster's own objects\n             they differ from those that were applied last")
	}
	fmt.Fprintf(e.Out, "\n%s on %s; slipway up takes them\n", launch.Plural(len(d.Steps), "step"), p.Plan.Node)
	return nil
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

func planText(w io.Writer, p plan.Plan) {
	fmt.Fprintf(w, "node %s of cluster %s: Kubernetes %s, %s\n\n", p.Node, p.Cluster, p.Release, launch.Plural(len(p.Entries), "item"))
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
