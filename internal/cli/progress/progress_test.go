// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/report"
)

// at builds an event; ms is the time since the command began.
func at(ms int, stage report.Stage, item, phase, text string) report.Event {
	e := report.Event{Stage: stage, Item: item, Phase: phase, Text: text, Elapsed: time.Duration(ms) * time.Millisecond}
	if stage == report.StageMachine || stage == report.StagePlan || stage == report.StageConverge {
		e.Machine = "dev-main-0"
	}
	return e
}

func progressed(e report.Event, done, total int) report.Event {
	e.Done, e.Total = done, total
	return e
}

func converge(ms int, item, phase, text string) report.Event {
	return at(ms, report.StageConverge, item, phase, text)
}

// show passes events at their times and returns the whole output.
func show(t *testing.T, mode Mode, end time.Duration, events ...report.Event) string {
	t.Helper()
	var out bytes.Buffer
	synctest.Test(t, func(*testing.T) {
		begun := time.Now()
		d := New(Options{Out: &out, Mode: mode, Size: func() (int, int) { return 100, 24 }})
		for _, e := range events {
			time.Sleep(e.Elapsed - time.Since(begun)) // fake time
			d.Event(e)
		}
		time.Sleep(end - time.Since(begun))
		d.Close()
		d.Close() // may be called twice
	})
	return out.String()
}

func TestPlain(t *testing.T) {
	t.Parallel()
	spec := at(0, report.StageSpec, "", "", "Kubernetes 1.36.4")
	for name, test := range map[string]struct {
		events []report.Event
		end    time.Duration
		want   []string
	}{
		"a first run": {
			events: []report.Event{
				spec,
				at(20, report.StagePreflight, "cgroup", "warning", "cgroup v1"),
				at(100, report.StageMachine, "", "ready", "created"),
				at(120, report.StagePlan, "", "", "80 items"),
				converge(130, "file//etc/a", "waiting", ""),
				converge(130, "file//etc/a", "doing", "create"),
				converge(131, "file//etc/a", "ready", ""),
				converge(132, "control/role", "ready", ""),
				converge(132, "unit/etcd", "waiting", "file//etc/a"),
				converge(140, "unit/etcd", "doing", "create"),
				converge(150, "unit/etcd", "starting", "http://127.0.0.1:2381/readyz to answer 200"),
				converge(200, "unit/etcd", "starting", "another reason"),
				converge(540, "unit/etcd", "ready", ""),
				converge(600, "control/node/dev-main-0", "starting", "the kubelet"),
				converge(1900, "control/node/dev-main-0", "ready", ""),
			},
			end: 2500 * time.Millisecond,
			want: []string{
				"     0.0 s spec: Kubernetes 1.36.4",
				"     0.0 s cgroup: warning: cgroup v1",
				"     0.1 s machine dev-main-0: created",
				"     0.1 s plan dev-main-0: 80 items",
				"     0.1 s etcd: starting",
				"     0.5 s etcd: ready, 0.4 s",
				"     1.9 s node dev-main-0: ready, 1.3 s",
			},
		},
		"a run that changes nothing": {
			events: []report.Event{
				spec, at(30, report.StageMachine, "", "ready", report.AlreadyRunning), at(40, report.StagePlan, "", "", "80 items"),
				converge(50, "unit/etcd", "ready", ""), converge(60, "control/dns", "starting", ""), converge(70, "control/dns", "ready", ""),
			},
			end: 80 * time.Millisecond,
		},
		"a slow run that changes nothing": {
			events: []report.Event{spec, converge(50, "control/dns", "starting", "CoreDNS")},
			end:    13 * time.Second,
			want: []string{
				"     0.0 s spec: Kubernetes 1.36.4",
				"      10 s cluster DNS: starting, waiting for CoreDNS, 10 s",
			},
		},
		"a long build": {
			events: []report.Event{
				spec,
				at(1000, report.StageBundle, "kubernetes 1.36.4", "download", ""),
				progressed(at(1500, report.StageBundle, "kubernetes 1.36.4", "download", "x"), 7, 0),
				progressed(at(3000, report.StageBundle, "kubernetes 1.36.4", "compile", ""), 0, 2400),
				progressed(at(12000, report.StageBundle, "kubernetes 1.36.4", "compile", ""), 812, 2400),
				at(24000, report.StageBundle, "kubernetes 1.36.4", "link", ""),
				at(26000, report.StageBundle, "kubernetes 1.36.4", "finished", ""),
			},
			end: 27 * time.Second,
			want: []string{
				"     0.0 s spec: Kubernetes 1.36.4",
				"     1.0 s kubernetes 1.36.4: download",
				"     3.0 s kubernetes 1.36.4: compile 0/2400 packages",
				"      13 s building kubernetes 1.36.4: compile 812/2400 packages, 12 s",
				"      23 s building kubernetes 1.36.4: compile 812/2400 packages, 22 s",
				"      24 s kubernetes 1.36.4: link",
				"      26 s kubernetes 1.36.4: finished, 25 s",
			},
		},
		"failures are told once for each reason": {
			events: []report.Event{
				converge(100, "unit/etcd", "doing", "create"),
				converge(200, "unit/etcd", "failing", "no disk\nat all\x1b[2J"),
				converge(250, "unit/etcd", "doing", "create"),
				converge(300, "unit/etcd", "failing", "no disk at all"),
				converge(310, "unit/etcd", "failing", "no memory"),
				converge(320, "cert/ca", "failing", "no entropy"),
			},
			end: time.Second,
			want: []string{
				"     0.1 s etcd: starting",
				"     0.2 s etcd: failing: no disk at all [2J",
				"     0.2 s etcd: starting",
				"     0.3 s etcd: failing: no disk at all",
				"     0.3 s etcd: failing: no memory",
				"     0.3 s cert/ca: failing: no entropy",
			},
		},
		"silence is broken": {
			events: []report.Event{at(100, report.StageMachine, "", "ready", "created")},
			end:    21 * time.Second,
			want:   []string{"     0.1 s machine dev-main-0: created", "      10 s still working", "      20 s still working"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := ""
			if len(test.want) > 0 {
				want = strings.Join(test.want, "\n") + "\n"
			}
			if diff := cmp.Diff(want, show(t, Plain, test.end, test.events...)); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
		})
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	got := show(t, JSON, time.Second, at(0, report.StageSpec, "", "", "a \"b\""), progressed(at(250, report.StageBundle, "etcd 3.6.16", "compile", ""), 3, 9))
	lines := strings.Split(strings.TrimSpace(got), "\n")
	if len(lines) != 2 {
		t.Fatalf("got %d lines, want one per event:\n%s", len(lines), got)
	}
	var e map[string]any
	if err := json.Unmarshal([]byte(lines[1]), &e); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"apiVersion": "slipway.dev/v1alpha1", "kind": "Event", "time": "2000-01-01T00:00:00.25Z", "elapsed": "250ms",
		"stage": "bundle", "item": "etcd 3.6.16", "phase": "compile", "done": 3.0, "total": 9.0,
	}
	if diff := cmp.Diff(want, e); diff != "" {
		t.Errorf("event (-want +got):\n%s", diff)
	}
}

func TestModeFor(t *testing.T) {
	t.Parallel()
	file, err := os.Create(t.TempDir() + "/file")
	if err != nil {
		t.Fatal(err)
	}
	none := func(string) string { return "" }
	for name, test := range map[string]struct {
		got, want Mode
	}{
		"json wins":      {ModeFor(file, true, none), JSON},
		"a file":         {ModeFor(file, false, none), Plain},
		"no file at all": {ModeFor(&bytes.Buffer{}, false, none), Plain},
	} {
		if test.got != test.want {
			t.Errorf("%s: got %v, want %v", name, test.got, test.want)
		}
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("pipe is closed") }

// TestConcurrent is for the race detector. An output that fails must not stop the command.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	for _, mode := range []Mode{Plain, Terminal} {
		d := New(Options{Out: broken{}, Mode: mode, Size: func() (int, int) { return 80, 5 }})
		var all sync.WaitGroup
		for n := range 8 {
			all.Go(func() {
				for i := range 50 {
					d.Event(converge(i, "unit/"+string(rune('a'+n)), []string{"doing", "starting", "failing", "ready"}[i%4], "x"))
					_, _ = d.Write([]byte("a log line\n"))
				}
			})
		}
		all.Wait()
		d.Close()
	}
}
