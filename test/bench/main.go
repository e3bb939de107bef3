// SPDX-License-Identifier: Apache-2.0

// Command bench boots and destroys real clusters and prints the tables of docs/performance.md: figures, their targets, and by how much a
// target is missed.
//
// It measures as a user would, through the machine's API, and does not use what Slipway reports about itself; only the critical path comes
// from the agent's trace. It changes nothing but its own cluster, which must not exist before. The cost of measuring is part of the
// figures: one request of /readyz and, until the first is accepted, one attempt to create a pod each 25 ms.
//
// Read [Run] and [bench.cycle] first.
//
//	go run ./test/bench -slipway bin/slipway -runs 10 -json bench.json
//	go run ./test/bench -only forms -forms 1 -apply 1    # a cluster in each form, and over SSH
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/slipway-project/slipway/internal/clusterdir"
	"github.com/slipway-project/slipway/internal/inventory"
)

type options struct {
	slipway string
	cluster string
	spec    string
	json    string
	runs    int
	several int
	forms   int
	apply   int
	only    string
	settle  time.Duration
	idle    time.Duration
	keep    bool
}

func main() {
	var o options
	flag.StringVar(&o.slipway, "slipway", "bin/slipway", "the program to measure")
	flag.StringVar(&o.cluster, "name", "bench", "cluster name; it must not exist")
	flag.StringVar(&o.spec, "f", "", "cluster spec of one machine (default: an empty one)")
	flag.StringVar(&o.json, "json", "", "also write all runs to this file")
	flag.IntVar(&o.runs, "runs", 10, "how many times to boot one machine")
	flag.IntVar(&o.several, "several", 3, "how many rounds with several machines; 0 omits them and the join service")
	flag.IntVar(&o.forms, "forms", 3, "how many rounds of host units and static pods, each with Slipway's supervisor and systemd; 0 omits them")
	flag.IntVar(&o.apply, "apply", 3, "how many rounds of slipway apply over SSH with five machines; 0 omits them")
	flag.StringVar(&o.only, "only", "", "measure only this: forms (with apply)")
	flag.DurationVar(&o.settle, "settle", time.Minute, "how long to wait before each run until the host is idle")
	flag.DurationVar(&o.idle, "idle", time.Minute, "how long to wait before memory is measured, and how long CPU is measured in an idle cluster; 0 omits both")
	flag.BoolVar(&o.keep, "keep", false, "keep the last cluster")
	crowd := flag.Bool("crowd", false, "join as many simulated machines; bench runs itself with this flag")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	work := func() error { return run(ctx, o) }
	if *crowd {
		work = func() error { return runCrowd(ctx, os.Stdin, os.Stdout) }
	}
	if err := work(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// narrowed removes what -only does not name.
func (o options) narrowed() (options, error) {
	switch o.only {
	case "":
	case onlyForms:
		o.runs, o.several = 0, 0
	default:
		return o, fmt.Errorf("-only %s: use %s, or omit it", o.only, onlyForms)
	}
	return o, nil
}

const onlyForms = "forms"

func run(ctx context.Context, o options) error {
	o, err := o.narrowed()
	if err != nil {
		return err
	}
	exe, err := filepath.Abs(o.slipway)
	if err != nil {
		return fmt.Errorf("find slipway: %w", err)
	}
	b := &bench{
		options:   o,
		inventory: inventory.Inventory{Dir: clusterdir.Dir{Root: "/var/lib/slipway"}, Exe: exe, Log: slog.New(slog.DiscardHandler)},
	}
	if err := b.prepare(ctx); err != nil {
		return err
	}
	err = b.all(ctx)
	if err != nil { // show the figures measured so far
		if !b.report.some() {
			return err
		}
		b.note("the measurement was interrupted: figures are missing")
	}
	show(os.Stdout, b.report)
	if o.json != "" {
		err = errors.Join(err, b.report.save(o.json))
	}
	return err
}
