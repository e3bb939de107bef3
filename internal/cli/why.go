// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/slipway-project/slipway/internal/bootstrap"
	"github.com/slipway-project/slipway/internal/clusterdir"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/operate"
	"github.com/slipway-project/slipway/internal/reconcile"
	"github.com/slipway-project/slipway/internal/trace"
)

func why(e Env) *cobra.Command {
	var source clusterdir.Source
	var node string
	var out format
	cmd := &cobra.Command{
		Use:   "why ITEM|SETTING",
		Short: "Explain an item of a node's plan, or the origin of a setting",
		Long: `Explain an item of a node's plan: its definition, its dependencies, the items that need it, and its state. Or explain a
setting: its value and where the value comes from (default, derived from another setting, or the user with the line).`,
		Example: `  slipway why kubelet
  slipway why file//etc/kubernetes/audit-policy.yaml
  slipway why apiserver.flags.audit-log-path`,
		Args: cobra.ExactArgs(1),
	}
	specFlags(e, cmd, &source)
	nodeFlag(e, cmd, &node, &source.Name)
	outputFlag(cmd, &out)
	cmd.ValidArgsFunction = func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		p, err := bootstrap.PlanNode(cmd.Context(), *e.Inventory, source, node)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var names []string
		for _, entry := range p.Plan.Entries {
			names = append(names, entry.Ref.String())
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p, err := bootstrap.PlanNode(cmd.Context(), *e.Inventory, source, node)
		if err != nil {
			return err
		}
		if entry, ok := findItem(p.Plan, args[0]); ok {
			return whyItem(cmd, e, out, p, entry)
		}
		s, err := config.Why(p.Cluster.Config, args[0])
		if err != nil {
			return usageError{fmt.Errorf("%q is neither an item of the plan of %s (see slipway plan) nor a setting: %w", args[0], p.Plan.Node, err)}
		}
		return showSetting(e, out, s)
	}
	return cmd
}

// findItem finds an item by its reference, or by its key alone. If several items have the same key, a process wins.
func findItem(p plan.Plan, name string) (plan.Entry, bool) {
	if entry, ok := p.Find(name); ok {
		return entry, true
	}
	if entry, ok := p.Process(name); ok {
		return entry, true
	}
	for _, entry := range p.Entries {
		if entry.Item.Key() == name {
			return entry, true
		}
	}
	return plan.Entry{}, false
}

type itemView struct {
	Ref      string            `json:"ref"`
	Node     string            `json:"node"`
	Item     plan.Item         `json:"item"`
	After    []string          `json:"after"`
	NeededBy []string          `json:"neededBy"`
	State    *reconcile.Status `json:"state,omitempty"`
	Unknown  string            `json:"unknown,omitempty"` // why the state is not known
}

func whyItem(cmd *cobra.Command, e Env, out format, p bootstrap.PlannedNode, entry plan.Entry) error {
	v := itemView{Ref: entry.Ref.String(), Node: p.Plan.Node, Item: entry.Item, After: refs(entry.Needs), NeededBy: neededBy(p.Plan, entry.Ref)}
	items, err := operate.Items(cmd.Context(), *e.Inventory, p.Plan.Cluster, p.Plan.Node)
	if err != nil {
		v.Unknown = err.Error()
	}
	if i := slices.IndexFunc(items, func(s reconcile.Status) bool { return s.Ref == v.Ref }); i >= 0 {
		v.State = &items[i]
	} else if err == nil {
		v.Unknown = "the plan of the running machine has no such item yet: see slipway diff"
	}
	if out != asText {
		return out.object(e.Out, "Item", v)
	}
	return itemText(e.Out, v, items, time.Now())
}

func neededBy(p plan.Plan, ref plan.Ref) []string {
	out := []string{}
	for _, entry := range p.Entries {
		if slices.Contains(entry.Needs, ref) {
			out = append(out, entry.Ref.String())
		}
	}
	return out
}

func itemText(w io.Writer, v itemView, items []reconcile.Status, now time.Time) error {
	switch {
	case v.State == nil:
		fmt.Fprintf(w, "%s on %s: state unknown: %s\n", v.Ref, v.Node, v.Unknown)
	case v.State.Phase == reconcile.Ready:
		fmt.Fprintf(w, "%s on %s: ready for %s\n", v.Ref, v.Node, ago(now.Sub(v.State.Since)))
	default:
		fmt.Fprintf(w, "%s on %s: %s for %s\n", v.Ref, v.Node, v.State.Phase, ago(now.Sub(v.State.Since)))
		byRef := map[string]reconcile.Status{}
		for _, s := range items {
			byRef[s.Ref] = s
		}
		for _, line := range because(*v.State, byRef, v.Node) {
			fmt.Fprintf(w, "  %-12s %s\n", line[0]+":", line[1])
		}
	}
	body, err := describe(v.Item)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\ndefinition:\n%s", body)
	fmt.Fprintf(w, "\n%s\n", wrap("after:       ", orNothing(v.After)))
	fmt.Fprintf(w, "%s\n", wrap("needed by:   ", orNothing(v.NeededBy)))
	if len(v.NeededBy) == 0 {
		fmt.Fprintln(w, "             (the node itself needs it)")
	}
	return nil
}

// describe formats an item as indented YAML.
func describe(item plan.Item) (string, error) {
	body, err := json.Marshal(item)
	if err != nil {
		return "", err
	}
	text, err := yaml.JSONToYAML(body)
	if err != nil {
		return "", fmt.Errorf("show item: %w", err)
	}
	return "  " + strings.ReplaceAll(strings.TrimRight(string(text), "\n"), "\n", "\n  ") + "\n", nil
}

func orNothing(list []string) []string {
	if len(list) == 0 {
		return []string{"nothing"}
	}
	return list
}

func showSetting(e Env, out format, a config.Answer) error {
	if out == asText {
		fmt.Fprintln(e.Out, a)
		return nil
	}
	return out.object(e.Out, "Setting", map[string]string{
		"path": a.Path, "value": a.Value, "origin": string(a.Origin.From), "note": a.Origin.Note,
	})
}

func traceCommand(e Env) *cobra.Command {
	var name, machine, target string
	var all bool
	var out format
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Show the critical path of the last start of a machine",
		Long: `Show the critical path of the last convergence of a machine: the chain of items in which each item had to wait for the
previous one. For each item, trace shows when it could start, how long its step took, and how long until it was ready.`,
		Example: `  slipway trace
  slipway trace --to control/node/dev-main-0
  slipway trace --all --output json`,
		Args: noArgs,
	}
	nameFlag(e, cmd, &name)
	machineFlag(e, cmd, &machine, &name)
	cmd.Flags().StringVar(&target, "to", "", "last item of the path (default: the item that became ready last)")
	cmd.Flags().BoolVar(&all, "all", false, "show every item, not only the critical path")
	outputFlag(cmd, &out)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		spans, err := operate.Trace(cmd.Context(), *e.Inventory, name, machine)
		if err != nil {
			return err
		}
		known := slices.ContainsFunc(spans, func(s trace.Span) bool { return s.Ref == target })
		if target != "" && !known {
			return usageError{fmt.Errorf("--to %q: no such item in the trace: see slipway trace --all", target)}
		}
		path := trace.CriticalPath(finishedSpans(spans), target)
		if out != asText {
			return out.object(e.Out, "Trace", map[string]any{"criticalPath": segments(path), "spans": spans})
		}
		if len(path) == 0 {
			fmt.Fprintln(e.Out, "no item is ready yet: see slipway status")
			return nil
		}
		pathText(e.Out, path)
		if all {
			fmt.Fprintln(e.Out)
			spansText(e.Out, spans)
		}
		return nil
	}
	return cmd
}

// finishedSpans returns the spans of items that are ready. A path cannot lead to the others, which have no end.
func finishedSpans(spans []trace.Span) []trace.Span {
	return slices.DeleteFunc(slices.Clone(spans), func(s trace.Span) bool { return s.Ready.IsZero() })
}

type segmentView struct {
	Ref   string `json:"ref"`
	Start string `json:"start"`
	Doing string `json:"doing"`
	Ready string `json:"ready"`
}

func segments(path []trace.Segment) []segmentView {
	out := []segmentView{}
	for _, s := range path {
		out = append(out, segmentView{s.Ref, milli(s.Start), milli(s.Doing), milli(s.Ready)})
	}
	return out
}

func milli(d time.Duration) string { return d.Round(time.Millisecond).String() }

func pathText(w io.Writer, path []trace.Segment) {
	last := path[len(path)-1]
	fmt.Fprintf(w, "%s was ready after %s. Critical path:\n\n", last.Ref, milli(last.Start+last.Doing+last.Ready))
	rows := [][]string{{"STARTED", "STEP", "READY", "ITEM"}}
	for _, s := range path {
		rows = append(rows, []string{milli(s.Start), milli(s.Doing), milli(s.Ready), s.Ref})
	}
	table(w, rows)
}

func spansText(w io.Writer, spans []trace.Span) {
	if len(spans) == 0 {
		return
	}
	zero := slices.MinFunc(spans, func(a, b trace.Span) int { return a.Begun.Compare(b.Begun) }).Begun
	spans = slices.Clone(spans)
	slices.SortStableFunc(spans, func(a, b trace.Span) int { return cmp.Compare(readyAt(a, zero), readyAt(b, zero)) })
	rows := [][]string{{"WAITED", "STEP", "READY", "AT", "FAILED", "ITEM"}}
	for _, s := range spans {
		ready, at := "-", "-"
		if !s.Ready.IsZero() {
			ready, at = milli(s.Ready.Sub(s.Done)), milli(s.Ready.Sub(zero))
		}
		rows = append(rows, []string{milli(s.Released.Sub(s.Begun)), milli(s.Done.Sub(s.Released)), ready, at, strconv.Itoa(s.Attempts), s.Ref})
	}
	table(w, rows)
}

// readyAt is when an item was ready. Items that are not ready sort last.
func readyAt(s trace.Span, zero time.Time) time.Duration {
	if s.Ready.IsZero() {
		return 1<<63 - 1
	}
	return s.Ready.Sub(zero)
}
