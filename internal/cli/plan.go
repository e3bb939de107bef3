// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/bootstrap"
	"github.com/slipway-project/slipway/internal/clusterdir"
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
