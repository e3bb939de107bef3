// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/slipway-project/slipway/internal/operate"
	"github.com/slipway-project/slipway/internal/trace"
)

func traceCommand(e Env) *cobra.Command {
	var name, machine, target string
	var all bool
	var out format
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Show which chain of waits decided how long a start took",
		Long: `Show the critical path of the last convergence: the chain of items each of which was the last need of the next. For each,
when it could begin, how long the step took, and how long until it was ready.`,
		Example: `  slipway trace
  slipway trace --to control/node/dev-main-0
  slipway trace --all --output json`,
		Args: noArgs,
	}
	nameFlag(e, cmd, &name)
	machineFlag(e, cmd, &machine, &name)
	cmd.Flags().StringVar(&target, "to", "", "item at the end of the path (default: the one that was ready last)")
	cmd.Flags().BoolVar(&all, "all", false, "show every item, not only the critical path")
	outputFlag(cmd, &out)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		spans, err := operate.Trace(cmd.Context(), *e.Inventory, name, machine)
		if err != nil {
			return err
		}
		known := slices.ContainsFunc(spans, func(s trace.Span) bool { return s.Ref == target })
		if target != "" && !known {
			return usageError{fmt.Errorf("--to %q: the trace has no such item: see slipway trace --all", target)}
		}
		path := trace.CriticalPath(finishedSpans(spans), target)
		if out != asText {
			return out.object(e.Out, "Trace", map[string]any{"criticalPath": segments(path), "spans": spans})
		}
		if len(path) == 0 {
			fmt.Fprintln(e.Out, "nothing has become ready yet: see slipway status")
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

// finishedSpans leaves out what is not ready: it has no end that a path could lead to.
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
	fmt.Fprintf(w, "%s was ready after %s. What it waited for:\n\n", last.Ref, milli(last.Start+last.Doing+last.Ready))
	rows := [][]string{{"BEGAN", "STEP", "READY", "ITEM"}}
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

// readyAt orders what is not ready behind the rest.
func readyAt(s trace.Span, zero time.Time) time.Duration {
	if s.Ready.IsZero() {
		return 1<<63 - 1
	}
	return s.Ready.Sub(zero)
}
