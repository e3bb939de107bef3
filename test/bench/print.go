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
)

// show writes the report as Markdown, as it goes into the README.
func show(w io.Writer, r Report) {
	fmt.Fprintf(w, "%d runs, %s UTC, %d CPUs, kernel %s, cgroup v%d; load before %s, %.0f %% of the CPUs in use\n",
		len(r.Runs), r.Host.When, r.Host.CPUs, r.Host.Kernel, map[bool]int{true: 1, false: 2}[r.Host.CgroupV1], r.Host.Load, 100*r.Host.Busy)
	runs := r.undisturbed()
	printDisturbance(w, r, runs)
	for _, n := range r.Notes {
		fmt.Fprintln(w, "note:", n)
	}
	if r.Spec > 0 || r.Several != nil { // else only the forms were wanted
		fmt.Fprintln(w, "\nPeers: the same host, another day.")
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
	fmt.Fprintf(w, "\nSeconds count from the start of `slipway up`. CPU is that of the machine's cgroup and of slipway up itself; the import of\n"+
		"the benchmark's own image is in it, about %.2f s. PSS is that of every process of the machine, CoreDNS and agent included.\n", spread(imported).Median)
	printPath(w, runs)
	printShares(w, "CPU seconds until DNS answers, by unit", medians(runs), "s")
	if r.Idle != nil {
		printShares(w, fmt.Sprintf("PSS after %.0f s, by program, as if alone on the host (the kernel says %d MiB in all)",
			r.Idle.Rested, r.Idle.Kernel/mebibyte), scaled(r.Idle.PSS), "MiB")
		printShares(w, "CPU seconds of an idle minute, by program", r.Idle.CPUBy, "s")
	}
}

// printDisturbance says what others did during the boots of one machine.
func printDisturbance(w io.Writer, r Report, calm []Run) {
	if len(calm) == 0 {
		return
	}
	var foreign []float64
	for _, run := range calm {
		foreign = append(foreign, run.Foreign)
	}
	f := spread(foreign)
	fmt.Fprintf(w, "CPU that others took during a boot: %.2f s (%.2f–%.2f)\n", f.Median, f.Min, f.Max)
	if left := len(r.Runs) - len(calm); left > 0 {
		fmt.Fprintf(w, "%d runs are left out: others took more than %.0f %% of the CPUs\n", left, 100*disturbed)
	} else if f.Max > disturbed*float64(r.Host.CPUs)*5 {
		fmt.Fprintln(w, "WARNING: other work on this host disturbed the runs, and too few were calm to leave the others out")
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
	fmt.Fprintln(w, "\nCritical path (medians, seconds; time 0 is when the agent took up the plan)")
	t := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprintln(t, "| item\t| on it in runs\t| ready at\t| took since the one before\t| of that its step\t|")
	fmt.Fprintln(t, "|---\t|---\t|---\t|---\t|---\t|")
	for _, l := range links(runs) {
		fmt.Fprintf(t, "| %s\t| %d\t| %.3f\t| %.3f\t| %.3f\t|\n", l.ref, l.runs, l.at, l.took, l.doing)
	}
	t.Flush()
}

// printShares writes a table, largest first, with its sum.
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
