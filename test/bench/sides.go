// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
)

// Side is the same boot of one machine in another form than the usual one.
type Side struct {
	Name string `json:"name"`
	Runs []Run  `json:"runs"`

	up []string // what slipway up is told
}

// sides are the other forms. A new one is a line here.
func sides() []Side {
	return []Side{
		{Name: "systemd", up: []string{"--init", "systemd"}},
	}
}

// measureSides boots each form as often as wanted, in turns: what disturbs the host disturbs all of them.
func (b *bench) measureSides(ctx context.Context) error {
	if b.sides == 0 {
		return nil
	}
	if b.keep && b.runs > 0 {
		b.note("the other forms are left out, for the last cluster is kept")
		return nil
	}
	b.report.Sides = sides()
	for i := range b.sides {
		for s := range b.report.Sides {
			side := &b.report.Sides[s]
			name := fmt.Sprintf("%s, run %d", side.Name, i+1)
			if err := b.quiet(ctx, name); err != nil {
				return err
			}
			run, err := b.cycle(ctx, false, side.up...)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			side.Runs = append(side.Runs, run)
			b.say("%s: API %.2f  node %.2f  running %.2f  DNS %.2f  up %.2f  CPU %.2f  others' CPU %.2f",
				name, run.APIReady, run.NodeReady, run.PodRunning, run.DNS, run.Up, run.CPU, run.Foreign)
		}
	}
	return nil
}

// printSides has a column per form and a line per figure of the boot.
func printSides(w io.Writer, r Report) {
	columns := [][]figure{bootFigures(r.undisturbed())}
	head, rule := "| median\t| usual\t|", "|---\t|---\t|"
	for _, s := range r.Sides {
		columns = append(columns, bootFigures(r.calm(s.Runs)))
		head, rule = head+" "+s.Name+"\t|", rule+"---\t|"
	}
	if len(columns) == 1 || len(columns[0]) == 0 {
		return
	}
	fmt.Fprintln(w, "\nOne machine, side by side")
	t := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprintf(t, "%s\n%s\n", head, rule)
	for line, f := range columns[0] {
		fmt.Fprintf(t, "| %s, %s\t|", f.name, f.unit)
		for _, column := range columns {
			cell := ""
			if line < len(column) {
				cell = fmt.Sprintf("%.*f", f.digits, column[line].value.Median)
			}
			fmt.Fprintf(t, " %s\t|", cell)
		}
		fmt.Fprintln(t)
	}
	t.Flush()
}
