// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
)

// Spread is the minimum, median and maximum of some values.
type Spread struct{ Min, Median, Max float64 }

func spread(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	v := slices.Sorted(slices.Values(values))
	middle := len(v) / 2
	s := Spread{v[0], v[middle], v[len(v)-1]}
	if len(v)%2 == 0 {
		s.Median = (v[middle-1] + v[middle]) / 2
	}
	return s
}

// disturbed is the share of all CPUs that other processes may use during an undisturbed measurement. Kernel threads that write for the
// cluster count as others and use about a tenth.
const disturbed = 0.2

// undisturbed returns the undisturbed boots, or all boots if fewer than three are undisturbed.
func (r Report) undisturbed() []Run {
	var calm []Run
	for _, run := range r.Runs {
		if !r.disturbedRun(run) {
			calm = append(calm, run)
		}
	}
	if len(calm) < min(3, len(r.Runs)) {
		return r.Runs
	}
	return calm
}

func (r Report) disturbedRun(run Run) bool {
	return run.Foreign > disturbed*float64(r.Host.CPUs)*run.Up
}

// figure is a row of the table.
type figure struct {
	name   string
	unit   string
	value  Spread
	digits int
	target float64 // 0: none
	peers  peers
}

// verdict says whether the median meets the target, or by how much it misses it.
func (f figure) verdict() string {
	switch {
	case f.target == 0:
		return ""
	case f.value.Median <= f.target:
		return "ok"
	}
	return fmt.Sprintf("missed by %.*f %s", f.digits, f.value.Median-f.target, f.unit)
}

const mebibyte = 1 << 20

// bootFigures returns the figures of one machine's boot.
func bootFigures(runs []Run) []figure {
	if len(runs) == 0 {
		return nil
	}
	of := func(field func(Run) float64) Spread {
		values := make([]float64, 0, len(runs))
		for _, run := range runs {
			values = append(values, field(run))
		}
		return spread(values)
	}
	return []figure{
		{"API ready", "s", of(func(r Run) float64 { return r.APIReady }), 2, 0, peersAPI},
		{"node Ready", "s", of(func(r Run) float64 { return r.NodeReady }), 2, 4, peersNode},
		{"first pod accepted", "s", of(func(r Run) float64 { return r.Admitted }), 2, 0, peers{}},
		{"first pod Running", "s", of(func(r Run) float64 { return r.PodRunning }), 2, 6, peersPod},
		{"DNS answers in a pod", "s", of(func(r Run) float64 { return r.DNS }), 2, 8, peersDNS},
		{"up, whole command", "s", of(func(r Run) float64 { return r.Up }), 2, 0, peers{}},
		{"up again, no change", "s", of(func(r Run) float64 { return r.SecondUp }), 2, 0, peers{}},
		{"down", "s", of(func(r Run) float64 { return r.Down }), 2, 0, peers{}},
		{"CPU until DNS answers", "s", of(func(r Run) float64 { return r.CPU }), 2, 6, peersCPU},
	}
}

// figures returns all rows of the table.
func (r Report) figures() []figure {
	once := func(v float64) Spread { return Spread{v, v, v} }
	out := bootFigures(r.undisturbed())
	if r.Spec > 0 {
		out = append(out, figure{"spec and plans, 1 000 machines", "s", once(r.Spec), 2, 1, peers{}})
	}
	out = append(out, figure{"bin/slipway", "MiB", once(float64(r.Size) / mebibyte), 1, 0, peers{}})
	if i := r.Idle; i != nil {
		out = append(out,
			figure{"PSS, all processes, idle", "MiB", once(float64(sum(i.PSS)) / mebibyte), 0, 560, peersPSS},
			figure{"PSS of the agent, idle", "MB", once(float64(i.Agent) / 1e6), 1, 40, peers{}},
			figure{"CPU of the agent, idle", "% of a core", once(100 * i.Share), 2, 0.5, peers{}},
			figure{"CPU of an idle minute", "s", once(i.CPU), 2, 0, peersIdle},
		)
	}
	return append(out, r.Several.figures()...)
}

// values returns the undisturbed values, or all values if fewer than three are undisturbed.
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

// figures returns the rows about several machines.
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
		if len(m.list) > 0 {
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

// printSeveral explains the figures about several machines and how disturbed they are.
func printSeveral(w io.Writer, s *Several) {
	if s == nil {
		return
	}
	var others []float64
	for _, t := range slices.Concat(s.Worker, s.Grow, s.Five, s.Killed, s.Lost, s.Writes) {
		others = append(others, 100*t.Others)
	}
	o := spread(others)
	fmt.Fprintf(w, "\nSeveral machines: %d of %d acknowledged writes are lost. Other processes used %.0f %% of the CPUs meanwhile (%.0f–%.0f %%);\n"+
		"values measured while they used more than %.0f %% are omitted if enough values remain. A worker's time counts from the line about the\n"+
		"start of its agent on its console; it has a token and gets the request to join at once. Times without an answer are the longest of %d\n"+
		"clients on a worker, %d of which keep their connections, and count from the last answer.\n",
		s.Missing, s.Acked, o.Median, o.Min, o.Max, 100*disturbed, persistent+unpooled, persistent)
	if o.Max > 100*disturbed {
		fmt.Fprintln(w, "WARNING: other processes on this host disturbed figures with too few undisturbed values")
	}
	if s.Missing > 0 {
		fmt.Fprintf(w, "MISSED: %d acknowledged writes are lost\n", s.Missing)
	}
}

// peers has medians of other distributions on the reference host, measured on another day in the same way, with all images imported: kubeadm
// 1.36.3 with containerd, kubelet and CNI configuration installed before; the same with a tuned controller-manager; k3s with sqlite and
// with etcd, and k0s as a single node, these three including their installation.
type peers struct{ kubeadm, tuned, k3s, k3sEtcd, k0s string }

func (p peers) columns() []string { return []string{p.kubeadm, p.tuned, p.k3s, p.k3sEtcd, p.k0s} }

var (
	peersAPI  = peers{"4.8", "4.6", "3.4", "4.4", "3.7"}
	peersNode = peers{"4.0", "3.6", "5.7", "5.7", "12.3"}
	peersPod  = peers{"13.2", "8.2", "11.2", "11.1", "14.1"}
	peersDNS  = peers{"16.7", "11.4", "12.8", "13.0", "45.5"}
	peersCPU  = peers{"9.3", "8.0", "5.2", "8", "10.2"}
	peersPSS  = peers{"797", "", "563", "575", "894"}
	peersIdle = peers{"5.2", "", "1.8", "", "3.6"}

	// Join of a worker; with kubeadm, containerd already runs.
	peersWorker = peers{"1.0", "", "3.0", "", "0.9"}
)

// link is an item on the critical path of some runs. Times are medians over these runs, in seconds.
type link struct {
	ref   string
	runs  int
	at    float64 // when it is ready, since the agent got the plan
	took  float64 // since the item before it on the path was ready; the sum over a path is its end
	doing float64 // the part of took for the step itself; the rest is waiting until it is ready
}

// links merges the critical paths of all runs, ordered by time.
func links(runs []Run) []link {
	type times struct{ at, took, doing []float64 }
	by := map[string]*times{}
	for _, r := range runs {
		before := 0.0
		for _, s := range r.Path {
			t := by[s.Ref]
			if t == nil {
				t = &times{}
				by[s.Ref] = t
			}
			at := (s.Start + s.Doing + s.Ready).Seconds()
			t.at = append(t.at, at)
			t.took = append(t.took, at-before)
			t.doing = append(t.doing, s.Doing.Seconds())
			before = at
		}
	}
	var out []link
	for ref, t := range by {
		out = append(out, link{ref, len(t.at), spread(t.at).Median, spread(t.took).Median, spread(t.doing).Median})
	}
	slices.SortFunc(out, func(a, b link) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.ref, b.ref)) })
	return out
}
