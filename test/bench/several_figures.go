// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"slices"
)

// values are those that were measured while others did not disturb, or all when that leaves too few.
func values(list []Timed) []float64 {
	var calm, all []float64
	for _, t := range list {
		all = append(all, t.Value)
		if t.Others <= disturbed {
			calm = append(calm, t.Value)
		}
	}
	if len(calm) < min(3, len(all)) {
		return all
	}
	return calm
}

// figures are the lines about several machines.
func (s *Several) figures() []figure {
	if s == nil {
		return nil
	}
	once := func(v float64) Spread { return Spread{v, v, v} }
	var out []figure
	for _, m := range []struct {
		name   string
		list   []Timed
		target float64
		peers  peers
	}{
		{"worker: agent started to Ready", s.Worker, 1, peersWorker},
		{"control planes 1 to 3, whole command", s.Grow, 20, peers{}},
		{"five machines (3+2) all Ready", s.Five, 45, peers{}},
		{"five machines, whole command", s.FiveUp, 0, peers{}},
		{"API server killed: no answer on a worker", s.Killed, 3, peers{}},
		{"its machine lost: no answer on a worker", s.Lost, 3, peers{}},
		{"etcd's leader lost: no acknowledged write", s.Writes, 15, peers{}},
	} {
		if len(m.list) > 0 { // what was not measured keeps no target
			out = append(out, figure{m.name, "s", spread(values(m.list)), 2, m.target, m.peers})
		}
	}
	if j := s.Joins; j != nil {
		out = append(out,
			figure{"join, one of 1 000, p50", "ms", once(j.P50), 2, 0, peers{}},
			figure{"join, one of 1 000, p99", "ms", once(j.P99), 2, 0, peers{}},
			figure{"join, p50 to a bare handshake", "times", once(j.Ratio), 2, 4, peers{}},
			figure{"1 000 joins at once, p50", "s", once(j.StormP50), 2, 0, peers{}},
			figure{"1 000 joins at once, p99", "s", once(j.StormP99), 2, 0, peers{}},
			figure{"1 000 joins at once, heap of both sides", "MiB", once(j.Peak), 0, 0, peers{}},
			figure{"join service, heap kept for a machine", "KiB", once(j.Kept), 1, 0, peers{}},
		)
	}
	if l := s.Live; l != nil {
		n := fmt.Sprintf("real join service, %d machines: ", l.Machines)
		out = append(out,
			figure{n + "tokens, at once, p50", "s", once(l.NewP50), 2, 0, peers{}},
			figure{n + "tokens, at once, p99", "s", once(l.NewP99), 2, 0, peers{}},
			figure{n + "known, at once, p50", "s", once(l.AllP50), 2, 0, peers{}},
			figure{n + "known, at once, p99", "s", once(l.AllP99), 2, 0, peers{}},
			figure{n + "known, one by one, p50", "ms", once(l.OneP50), 1, 0, peers{}},
			figure{n + "known, one by one, p99", "ms", once(l.OneP99), 1, 0, peers{}},
			figure{n + "PSS of its agent grows by", "MiB", once(l.Grown), 1, 0, peers{}},
		)
	}
	return out
}

// printSeveral says what the figures about several machines are worth.
func printSeveral(w io.Writer, s *Several) {
	if s == nil {
		return
	}
	var others []float64
	for _, t := range slices.Concat(s.Worker, s.Grow, s.Five, s.Killed, s.Lost, s.Writes) {
		others = append(others, 100*t.Others)
	}
	o := spread(others)
	fmt.Fprintf(w, "\nSeveral machines: of %d acknowledged writes %d are gone. Others took %.0f %% of the CPUs meanwhile (%.0f–%.0f %%); what was\n"+
		"measured while they took more than %.0f %% is left out if enough remains. A worker's time counts from the line on its console that its\n"+
		"agent was started; it has a token and is told at once. Answers are missed by the unluckiest of %d clients on a worker, %d of which\n"+
		"keep their connections. Seconds in which an API did not answer count from the answer before.\n",
		s.Acked, s.Missing, o.Median, o.Min, o.Max, 100*disturbed, keeping+anew, keeping)
	if o.Max > 100*disturbed {
		fmt.Fprintln(w, "WARNING: other work on this host disturbed these figures where too few calm values were left")
	}
	if s.Missing > 0 {
		fmt.Fprintf(w, "MISSED: %d acknowledged writes are lost\n", s.Missing)
	}
}
