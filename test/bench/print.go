// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/slipway-project/slipway/internal/report"
)

// show writes the report in Markdown, for docs/performance.md.
func show(w io.Writer, r Report) {
	fmt.Fprintf(w, "%d runs, %s UTC, %d CPUs, kernel %s, cgroup v%d; load before %s, %.0f %% of the CPUs in use\n",
		len(r.Runs), r.Host.When, r.Host.CPUs, r.Host.Kernel, map[bool]int{true: 1, false: 2}[r.Host.CgroupV1], r.Host.Load, 100*r.Host.Busy)
	runs := r.undisturbed()
	printDisturbance(w, r, runs)
	for _, n := range r.Notes {
		fmt.Fprintln(w, "note:", n)
	}
	if r.Spec > 0 || r.Several != nil { // not with -only forms
		fmt.Fprintln(w, "\nOther distributions were measured on the same host on another day.")
		printFigures(w, r)
	}
	printForms(w, r)
	printSeveral(w, r.Several)
	if len(runs) == 0 {
		return
	}
	var imported []float64
	for _, run := range runs {
		imported = append(imported, run.Imported)
	}
	fmt.Fprintf(w, "\nSeconds count from the start of `slipway up`. CPU is that of the machine's cgroup and of slipway up itself, including the\n"+
		"import of the benchmark's own image (about %.2f s). PSS is that of every process of the machine, including CoreDNS and the agent.\n", spread(imported).Median)
	printPath(w, runs)
	printShares(w, "CPU seconds until DNS answers, by unit", medians(runs), "s")
	if r.Idle != nil {
		printShares(w, fmt.Sprintf("PSS after %.0f s, by program, without page sharing with other clusters (%d MiB in total according to the kernel)",
			r.Idle.Rested, r.Idle.Kernel/mebibyte), scaled(r.Idle.PSS), "MiB")
		printShares(w, "CPU seconds of an idle minute, by program", r.Idle.CPUBy, "s")
	}
}

// printDisturbance prints how much CPU other processes used during the boots of one machine.
func printDisturbance(w io.Writer, r Report, calm []Run) {
	if len(calm) == 0 {
		return
	}
	var foreign []float64
	for _, run := range calm {
		foreign = append(foreign, run.Foreign)
	}
	f := spread(foreign)
	fmt.Fprintf(w, "CPU of other processes during a boot: %.2f s (%.2f–%.2f)\n", f.Median, f.Min, f.Max)
	if left := len(r.Runs) - len(calm); left > 0 {
		fmt.Fprintf(w, "%d runs are omitted: other processes used more than %.0f %% of the CPUs\n", left, 100*disturbed)
	} else if f.Max > disturbed*float64(r.Host.CPUs)*5 {
		fmt.Fprintln(w, "WARNING: other processes on this host disturbed the runs, and too few runs were undisturbed to omit the others")
	}
}

func printFigures(w io.Writer, r Report) {
	t := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprintln(t, "| figure\t| min\t| median\t| max\t| at most\t| verdict\t| kubeadm\t| tuned\t| k3s\t| k3s, etcd\t| k0s\t|")
	fmt.Fprintln(t, "|---\t|---\t|---\t|---\t|---\t|---\t|---\t|---\t|---\t|---\t|---\t|")
	for _, f := range r.figures() {
		n := func(v float64) string { return fmt.Sprintf("%.*f", f.digits, v) }
		target := ""
		if f.target > 0 {
			target = fmt.Sprintf("%g", f.target)
		}
		fmt.Fprintf(t, "| %s, %s\t| %s\t| %s\t| %s\t| %s\t| %s\t| %s\t|\n", f.name, f.unit, n(f.value.Min), n(f.value.Median), n(f.value.Max),
			target, f.verdict(), strings.Join(f.peers.columns(), "\t| "))
	}
	t.Flush()
}

func printPath(w io.Writer, runs []Run) {
	fmt.Fprintln(w, "\nCritical path (medians, seconds since the agent got the plan)")
	t := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprintln(t, "| item\t| runs\t| ready at\t| time since the item before\t| of that the step\t|")
	fmt.Fprintln(t, "|---\t|---\t|---\t|---\t|---\t|")
	for _, l := range links(runs) {
		fmt.Fprintf(t, "| %s\t| %d\t| %.3f\t| %.3f\t| %.3f\t|\n", l.ref, l.runs, l.at, l.took, l.doing)
	}
	t.Flush()
}

// printShares writes a table with the largest value first, and the sum.
func printShares(w io.Writer, title string, values map[string]float64, unit string) {
	fmt.Fprintf(w, "\n%s\n", title)
	t := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	names := slices.SortedFunc(maps.Keys(values), func(a, b string) int { return cmp.Or(cmp.Compare(values[b], values[a]), cmp.Compare(a, b)) })
	sum := 0.0
	fmt.Fprintf(t, "|\t| %s\t|\n|---\t|---\t|\n", unit)
	for _, name := range names {
		fmt.Fprintf(t, "| %s\t| %.2f\t|\n", name, values[name])
		sum += values[name]
	}
	fmt.Fprintf(t, "| sum\t| %.2f\t|\n", sum)
	t.Flush()
}

func medians(runs []Run) map[string]float64 {
	by := map[string][]float64{}
	for _, r := range runs {
		for name, v := range r.CPUBy {
			by[name] = append(by[name], v)
		}
	}
	out := map[string]float64{}
	for name, values := range by {
		out[name] = spread(values).Median
	}
	return out
}

func scaled(bytes map[string]int64) map[string]float64 {
	out := map[string]float64{}
	for name, b := range bytes {
		out[name] = float64(b) / mebibyte
	}
	return out
}

// calmRounds returns the rounds with undisturbed runs of all forms, or all rounds if fewer than three are undisturbed. Only runs of the same
// round are compared.
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

// rounds returns the number of rounds that all forms have finished.
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

// formFigures returns the columns of the table of forms.
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

// compared returns the median, and the median of the ratios to the first form's run of the same round.
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

// printForms writes the tables between their markers in docs/performance.md.
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
	fmt.Fprintf(w, "The same cluster of one machine in %d forms: medians of %s, each of which boots all forms. In brackets: the ratio to the first\n"+
		"row's boot of the same round.\n\n", len(r.Forms), report.Count(len(calm), "round"))
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
		fmt.Fprintf(w, "\nOmitted: %s in which other processes used more than %.0f %% of the CPUs.\n", report.Count(left, "round"), 100*disturbed)
	} else if r.noisy(calm) {
		fmt.Fprintln(w, "\nWARNING: other processes on this host disturbed the rounds, and too few rounds were undisturbed to omit the others")
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
	fmt.Fprintf(w, "\n%d existing machines (%d+%d), over SSH from the same host: %s\n\n", farMains+farWorkers, farMains, farWorkers,
		report.Count(len(a.Cold), "round"))
	t := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprintf(t, "| slipway apply\t| min, s\t| median, s\t| max, s\t|\n|---\t|---\t|---\t|---\t|\n")
	for _, row := range []struct {
		name string
		list []Timed
	}{
		{"new machines, until all nodes are Ready", a.Cold},
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
	fmt.Fprintf(w, "\nOther processes used %.0f %% of the CPUs meanwhile (%.0f–%.0f %%).\n", o.Median, o.Min, o.Max)
}
