// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/slipway-project/slipway/internal/launch"
)

// calmRounds are the rounds in which others disturbed no form, or all when that leaves too few: only runs of one round are compared.
func (r Report) calmRounds() []int {
	var all, calm []int
	for i := range rounds(r.Forms) {
		all = append(all, i)
		if !slices.ContainsFunc(r.Forms, func(f Form) bool { return r.disturbedRun(f.Runs[i]) }) {
			calm = append(calm, i)
		}
	}
	if len(calm) < min(3, len(all)) {
		return all
	}
	return calm
}

// rounds is how many of them all forms have ended.
func rounds(forms []Form) int {
	if len(forms) == 0 {
		return 0
	}
	n := len(forms[0].Runs)
	for _, f := range forms {
		n = min(n, len(f.Runs))
	}
	return n
}

// formFigures are the columns of the table.
func formFigures() []formFigure {
	return []formFigure{
		{"node Ready, s", func(r Run) float64 { return r.NodeReady }},
		{"first pod Running, s", func(r Run) float64 { return r.PodRunning }},
		{"DNS answers in a pod, s", func(r Run) float64 { return r.DNS }},
		{"CPU until DNS answers, s", func(r Run) float64 { return r.CPU }},
	}
}

type formFigure struct {
	name string
	of   func(Run) float64
}

// compared is one cell: the median, and the median of the ratios to the first form's run of the same round.
func compared(first, own []Run, rounds []int, of func(Run) float64) (median, ratio float64) {
	var values, ratios []float64
	for _, i := range rounds {
		values = append(values, of(own[i]))
		if of(first[i]) > 0 {
			ratios = append(ratios, of(own[i])/of(first[i]))
		}
	}
	return spread(values).Median, spread(ratios).Median
}

// printForms writes the tables between the marks that the README has for them.
func printForms(w io.Writer, r Report) {
	applied := r.Apply != nil && len(r.Apply.Cold) > 0
	if rounds(r.Forms) == 0 && !applied {
		return
	}
	fmt.Fprintln(w, "\n<!-- bench-forms -->")
	if rounds(r.Forms) > 0 {
		printFormTable(w, r)
	}
	if applied {
		printApply(w, r.Apply)
	}
	fmt.Fprintln(w, "<!-- /bench-forms -->")
}

func printFormTable(w io.Writer, r Report) {
	calm := r.calmRounds()
	fmt.Fprintf(w, "The same cluster of one machine in %d ways: medians of %s, each of which boots all of them. In brackets: the ratio to the\n"+
		"first row's boot of the same round.\n\n", len(r.Forms), launch.Plural(len(calm), "round"))
	t := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	head, rule := "| the same cluster\t|", "|---\t|"
	for _, f := range formFigures() {
		head, rule = head+" "+f.name+"\t|", rule+"---\t|"
	}
	fmt.Fprintf(t, "%s PSS idle, MiB\t|\n%s---\t|\n", head, rule)
	first := r.Forms[0]
	for i, form := range r.Forms {
		fmt.Fprintf(t, "| %s\t|", form.Name)
		for _, f := range formFigures() {
			median, ratio := compared(first.Runs, form.Runs, calm, f.of)
			fmt.Fprintf(t, " %s\t|", cell(median, ratio, 2, i == 0))
		}
		memory := ""
		if own, of := sum(form.PSS), sum(first.PSS); own > 0 && of > 0 {
			memory = cell(float64(own)/mebibyte, float64(own)/float64(of), 0, i == 0)
		}
		fmt.Fprintf(t, " %s\t|\n", memory)
	}
	t.Flush()
	if left := rounds(r.Forms) - len(calm); left > 0 {
		fmt.Fprintf(w, "\nLeft out: %s in which others took more than %.0f %% of the CPUs.\n", launch.Plural(left, "round"), 100*disturbed)
	} else if r.noisy(calm) {
		fmt.Fprintln(w, "\nWARNING: other work on this host disturbed the rounds, and too few were calm to leave the others out")
	}
}

func cell(value, ratio float64, digits int, first bool) string {
	if first {
		return fmt.Sprintf("%.*f", digits, value)
	}
	return fmt.Sprintf("%.*f (× %.2f)", digits, value, ratio)
}

func (r Report) noisy(rounds []int) bool {
	return slices.ContainsFunc(rounds, func(i int) bool {
		return slices.ContainsFunc(r.Forms, func(f Form) bool { return r.disturbedRun(f.Runs[i]) })
	})
}

func printApply(w io.Writer, a *Apply) {
	fmt.Fprintf(w, "\n%d machines (%d+%d) that exist, over SSH from the same host: %s\n\n", farMains+farWorkers, farMains, farWorkers,
		launch.Plural(len(a.Cold), "round"))
	t := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprintf(t, "| slipway apply\t| min, s\t| median, s\t| max, s\t|\n|---\t|---\t|---\t|---\t|\n")
	for _, row := range []struct {
		name string
		list []Timed
	}{
		{"nothing there: copies all, until all are Ready", a.Cold},
		{"again, nothing to do", a.Again},
	} {
		if len(row.list) == 0 {
			continue
		}
		s := spread(values(row.list))
		fmt.Fprintf(t, "| %s\t| %.2f\t| %.2f\t| %.2f\t|\n", row.name, s.Min, s.Median, s.Max)
	}
	t.Flush()
	var others []float64
	for _, m := range slices.Concat(a.Cold, a.Again) {
		others = append(others, 100*m.Others)
	}
	o := spread(others)
	fmt.Fprintf(w, "\nOthers took %.0f %% of the CPUs meanwhile (%.0f–%.0f %%).\n", o.Median, o.Min, o.Max)
}
