// SPDX-License-Identifier: Apache-2.0

package trace_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/trace"
)

func TestCriticalPath(t *testing.T) {
	t.Parallel()
	zero := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	span := func(ref string, released, done, ready int, needs ...string) trace.Span {
		at := func(n int) time.Time {
			if n < 0 {
				return time.Time{}
			}
			return zero.Add(time.Duration(n) * time.Second)
		}
		return trace.Span{Ref: ref, Needs: needs, Begun: zero, Released: at(released), Done: at(done), Ready: at(ready)}
	}
	segment := func(ref string, start, doing, ready int) trace.Segment {
		return trace.Segment{Ref: ref, Start: time.Duration(start) * time.Second, Doing: time.Duration(doing) * time.Second, Ready: time.Duration(ready) * time.Second}
	}
	start := []trace.Span{
		span("cert", 0, 1, 1), span("bin", 0, 3, 3),
		span("etcd", 3, 4, 6, "cert", "bin"), span("api", 6, 7, 9, "etcd", "cert"),
		span("runtime", 3, 3, 12, "bin"), span("side", 0, 0, 2),
	}
	for name, tc := range map[string]struct {
		spans  []trace.Span
		target string
		want   []trace.Segment
	}{
		"nothing":          {},
		"one":              {spans: []trace.Span{span("a", 0, 2, 5)}, want: []trace.Segment{segment("a", 0, 2, 3)}},
		"to the last item": {spans: start, want: []trace.Segment{segment("bin", 0, 3, 0), segment("runtime", 3, 0, 9)}},
		"to a target":      {spans: start, target: "api", want: []trace.Segment{segment("bin", 0, 3, 0), segment("etcd", 3, 1, 2), segment("api", 6, 1, 2)}},
		"unknown target":   {spans: start, target: "moon", want: []trace.Segment{segment("bin", 0, 3, 0), segment("runtime", 3, 0, 9)}},
		"watcher that starts early": {
			spans: []trace.Span{span("a", 0, 1, 4), span("w", 0, 0, 6, "a")}, target: "w",
			want: []trace.Segment{segment("a", 0, 1, 3), segment("w", 4, 0, 2)},
		},
		"target not ready": {spans: []trace.Span{span("a", 0, 1, 2), span("b", 2, 3, -1, "a")}, target: "b", want: []trace.Segment{segment("a", 0, 1, 1), segment("b", 2, 1, 0)}},
		"unknown need":     {spans: []trace.Span{span("a", 1, 2, 3, "elsewhere")}, want: []trace.Segment{segment("a", 1, 1, 1)}},
		"cycle":            {spans: []trace.Span{span("a", 0, 1, 2, "b"), span("b", 0, 1, 3, "a")}, want: []trace.Segment{segment("a", 0, 1, 1), segment("b", 2, 0, 1)}},
		"need of itself":   {spans: []trace.Span{span("a", 0, 1, 2, "a")}, want: []trace.Segment{segment("a", 0, 1, 1)}},
		"tie: first by name": {
			spans: []trace.Span{span("b", 0, 1, 2), span("a", 0, 1, 2), span("c", 2, 2, 3, "b", "a")},
			want:  []trace.Segment{segment("a", 0, 1, 1), segment("c", 2, 0, 1)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, trace.CriticalPath(tc.spans, tc.target)); diff != "" {
				t.Errorf("path (-want +got):\n%s", diff)
			}
		})
	}
}
