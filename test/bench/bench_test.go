// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/trace"
)

func TestSpread(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		values []float64
		want   Spread
	}{
		"none": {nil, Spread{}},
		"odd":  {[]float64{3, 1, 2}, Spread{1, 2, 3}},
		"even": {[]float64{4, 1, 3, 2}, Spread{1, 2.5, 4}},
	} {
		if got := spread(test.values); got != test.want {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
}

func TestVerdict(t *testing.T) {
	t.Parallel()
	for want, f := range map[string]figure{
		"":                 {value: Spread{Median: 9}},
		"ok":               {value: Spread{Min: 3, Median: 4, Max: 5}, target: 4},
		"missed by 0.25 s": {value: Spread{Median: 4.25}, target: 4, unit: "s", digits: 2},
	} {
		if got := f.verdict(); got != want {
			t.Errorf("verdict: got %q, want %q", got, want)
		}
	}
}

func TestUndisturbed(t *testing.T) {
	t.Parallel()
	calm, noisy := Run{Up: 5, Foreign: 1}, Run{Up: 5, Foreign: 3}
	r := Report{Host: Host{CPUs: 2}, Runs: []Run{calm, noisy, calm, calm}}
	if got := len(r.undisturbed()); got != 3 {
		t.Errorf("runs: got %d, want the 3 undisturbed ones", got)
	}
	r.Runs = []Run{calm, noisy, noisy, calm}
	if got := len(r.undisturbed()); got != 4 {
		t.Errorf("runs: got %d, want all 4, because only 2 are undisturbed", got)
	}
}

func TestLinks(t *testing.T) {
	t.Parallel()
	path := func(api, dns time.Duration) Run {
		return Run{Path: []trace.Segment{
			{Ref: "unit/kube-apiserver", Start: time.Second, Doing: api, Ready: time.Second},
			{Ref: "control/dns", Start: 0, Ready: dns}, // its time counts from the API server on
		}}
	}
	got := links([]Run{path(0, 3*time.Second), path(time.Second, 7*time.Second)})
	want := []link{
		{ref: "unit/kube-apiserver", runs: 2, at: 2.5, took: 2.5, doing: 0.5},
		{ref: "control/dns", runs: 2, at: 5, took: 2.5},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(link{})); diff != "" {
		t.Error(diff)
	}
}

func TestMeterUntil(t *testing.T) {
	t.Parallel()
	begun := time.Now()
	m := &meter{samples: []sample{{at: begun, total: 1}, {at: begun.Add(time.Second), total: 2}}}
	for at, want := range map[time.Duration]float64{-time.Second: 1, 0: 1, time.Millisecond: 2, time.Minute: 2} {
		if got, _ := m.until(begun.Add(at)); got != want {
			t.Errorf("until %s: got %v, want %v", at, got, want)
		}
	}
}

func TestProcessFiles(t *testing.T) {
	t.Parallel()
	if got, err := cpuOf("7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 9"); err != nil || got != 2 {
		t.Errorf("CPU time: got %v, %v, want 2", got, err)
	}
	if got, err := pss("Rss: 9 kB\nPss:                 12 kB\nPss_Anon: 3 kB\n"); err != nil || got != 12<<10 {
		t.Errorf("PSS: got %v, %v, want 12 KiB", got, err)
	}
	for want, args := range map[string][]string{
		"kubelet":         {"/opt/slipway/bin/kubelet", "--v=0"},
		"slipway agent":   {"/opt/slipway/bin/slipway", "agent"},
		"containerd-shim": {"/blobs/" + strings.Repeat("a", 64), "-namespace", "k8s.io"},
	} {
		if got := program(args); got != want {
			t.Errorf("program: got %q, want %q", got, want)
		}
	}
}

func TestMapped(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can read page frames")
	}
	touched := bytes.Repeat([]byte{1}, 8<<20)
	own, err := alone([]process{{pid: os.Getpid()}})
	if err != nil {
		t.Fatal(err)
	}
	if got := own[os.Getpid()]; got < int64(len(touched)) || got > 1<<30 {
		t.Errorf("size of this process: got %d bytes, want at least %d", got, len(touched))
	}
	if touched[1] != 1 {
		t.Error("touched memory has changed")
	}
}

// A command has its own process group, and its error contains its output.
func TestRunLine(t *testing.T) {
	t.Parallel()
	r := runLine(t.Context(), "sh", "-c", `cut -d " " -f 1,5 /proc/$$/stat`) // pid and process group
	if pid, group, _ := strings.Cut(strings.TrimSpace(r.output), " "); r.err != nil || pid == "" || pid != group {
		t.Errorf("PID and process group: got %q, %v, want two equal numbers", r.output, r.err)
	}
	if r := runLine(t.Context(), "sh", "-c", "echo out; echo err >&2; exit 3"); r.err == nil || r.output != "out\nerr\n" || !strings.Contains(r.err.Error(), "exit status 3\nout\nerr") {
		t.Errorf("failing command: got output %q, error %v", r.output, r.err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r := runLine(ctx, "true"); r.err == nil {
		t.Error("command with a cancelled context: got no error")
	}
}
