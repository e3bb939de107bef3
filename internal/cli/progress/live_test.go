// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/report"
)

// screen emulates a terminal, as far as this package uses one.
type screen struct {
	rows   []string
	at     int
	widest int
}

var token = regexp.MustCompile(`\x1b\[(\d*)([A-Za-z])|\r|\n|[^\x1b\r\n]+`)

func (s *screen) play(t *testing.T, data string) {
	t.Helper()
	column := 0
	for _, m := range token.FindAllStringSubmatch(data, -1) {
		for len(s.rows) <= s.at {
			s.rows = append(s.rows, "")
		}
		switch {
		case m[0] == "\r":
			column = 0
		case m[0] == "\n":
			s.at, column = s.at+1, 0
		case m[2] == "A":
			n, _ := strconv.Atoi(m[1])
			if s.at -= n; s.at < 0 {
				t.Fatalf("the cursor moved %d lines above the screen", -s.at)
			}
		case m[2] == "K":
			s.rows[s.at] = string([]rune(s.rows[s.at])[:column])
		case m[2] == "J":
			s.rows = s.rows[:s.at]
		case m[2] == "m":
		case m[2] != "":
			t.Fatalf("unknown escape %q", m[0])
		default:
			old, text := []rune(s.rows[s.at]), []rune(m[0])
			for len(old) < column+len(text) {
				old = append(old, ' ')
			}
			copy(old[column:], text)
			column += len(text)
			s.rows[s.at], s.widest = string(old), max(s.widest, column)
		}
	}
}

func TestTerminalEnd(t *testing.T) {
	t.Parallel()
	raw := show(t, Terminal, 3*time.Second,
		at(0, report.StageSpec, "", "", "Kubernetes 1.36.4"),
		at(300, report.StageMachine, "", "ready", "created"),
		converge(310, "unit/etcd", "doing", "create"),
		converge(320, "unit/kubelet", "waiting", "unit/etcd"),
		converge(900, "unit/etcd", "ready", ""),
		converge(910, "unit/kubelet", "doing", "create"),
		converge(1500, "unit/kubelet", "failing", strings.Repeat("long ", 60)),
		converge(2500, "unit/kubelet", "ready", ""),
	)
	var s screen
	s.play(t, raw)
	want := []string{
		"     0.0 s spec: Kubernetes 1.36.4",
		"     0.3 s machine dev-main-0: created",
		"     0.9 s etcd: ready, 0.6 s",
		"     1.5 s kubelet: failing: " + strings.Repeat("long ", 14)[:69] + "…",
		"     2.5 s kubelet: ready, 1.6 s",
	}
	if diff := cmp.Diff(want, s.rows); diff != "" {
		t.Errorf("screen (-want +got):\n%s", diff)
	}
	if s.widest >= 100 {
		t.Errorf("got a line of %d characters, which wraps on a terminal of 100", s.widest)
	}
}

func TestTerminalWithoutChange(t *testing.T) {
	t.Parallel()
	raw := show(t, Terminal, time.Second, at(0, report.StageSpec, "", "", "x"), converge(50, "unit/etcd", "ready", ""))
	if raw != "" {
		t.Errorf("got output %q, want none", raw)
	}
}

func TestPicture(t *testing.T) {
	t.Parallel()
	rs := rows{byKey: map[key]*row{}}
	for _, e := range []report.Event{
		converge(100, "file//etc/a", "ready", ""),
		converge(100, "cert/ca", "doing", "create"),
		converge(100, "unit/etcd", "doing", "create"),
		converge(200, "unit/etcd", "starting", "waiting for http://127.0.0.1:2381/readyz to answer 200"),
		converge(200, "unit/containerd", "failing", "no such file"),
		converge(200, "unit/kubelet", "waiting", "unit/containerd"),
		converge(200, "unit/kube-proxy", "waiting", "unit/etcd"),
	} {
		rs.take(e, false)
	}
	for name, test := range map[string]struct {
		height int
		want   []string
	}{
		"all": {24, []string{
			"     1.9 s etcd                         starting, waiting for http://127.0.0.1:2381/readyz to answer 200",
			"     1.8 s containerd                   failing: no such file",
			"           files and certificates       1/2 ready",
			"           waiting: kubelet, kube-proxy",
		}},
		"a low terminal": {5, []string{
			"     1.9 s etcd                         starting, waiting for http://127.0.0.1:2381/readyz to answer 200",
			"           and 1 more",
			"           files and certificates       1/2 ready",
			"           waiting: kubelet, kube-proxy",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := rs.picture(2*time.Second, func() (int, int) { return 80, test.height })
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("picture (-want +got):\n%s", diff)
			}
		})
	}
}
