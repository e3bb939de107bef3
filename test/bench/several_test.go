// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestValues(t *testing.T) {
	t.Parallel()
	calm, noisy := Timed{Value: 1, Others: disturbed}, Timed{Value: 9, Others: disturbed + 0.01}
	for name, test := range map[string]struct {
		list []Timed
		want []float64
	}{
		"none":        {nil, nil},
		"undisturbed": {[]Timed{calm, noisy, calm, calm}, []float64{1, 1, 1}},
		"too few":     {[]Timed{calm, noisy, calm}, []float64{1, 9, 1}},
		"few":         {[]Timed{calm, calm}, []float64{1, 1}},
	} {
		if diff := cmp.Diff(test.want, values(test.list)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestReadJoins(t *testing.T) {
	t.Parallel()
	out := "goos: linux\n" +
		"BenchmarkJoin1000-2   \t 1\t5080143530 ns/op\t 704.5 bare-µs\t 3726 p50-µs\t 23549 p99-µs\t 5.289 ratio\t1878957840 B/op\t 4793268 allocs/op\n" +
		"BenchmarkStorm1000-16 \t 1\t1.5e+10 ns/op\t 62.78 joins/s\t 10.17 kept-KiB\t 11767 p50-ms\t 15923 p99-ms\t 271.5 peak-MiB\nPASS\n"
	got, err := readJoins(out)
	if err != nil {
		t.Fatal(err)
	}
	want := &Joins{P50: 3.726, P99: 23.549, Bare: 0.7045, Ratio: 5.289, StormP50: 11.767, StormP99: 15.923, Peak: 271.5, Kept: 10.17}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if _, err := readJoins(strings.ReplaceAll(out, "ratio", "share")); err == nil {
		t.Error("output without a value: got no error")
	}
}

// A gap counts from the last answer, and counts even if it has not ended.
func TestAskerGap(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		down := func() bool { return time.Since(begun) > time.Second && time.Since(begun) < 3*time.Second }
		q := newAsker(func(context.Context) error {
			if down() {
				return errors.New("no answer")
			}
			return nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
		_ = q.run(ctx)
		cancel()
		if gap := q.longest(); gap < 1400*time.Millisecond || gap > 1600*time.Millisecond || q.complaint() == nil {
			t.Errorf("gap that has not ended: got %s, %v, want 1.5 s and an error", gap, q.complaint())
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_ = q.run(ctx)
		if gap := q.longest(); gap < 1950*time.Millisecond || gap > 2100*time.Millisecond {
			t.Errorf("gap that has ended: got %s, want 2 s", gap)
		}
		q.reset()
		if q.longest() != 0 || q.answered() != 0 || q.complaint() != nil {
			t.Errorf("after a reset: got gap %s, %d answers, %v", q.longest(), q.answered(), q.complaint())
		}
	})
}

func TestMissing(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != writePath || r.URL.Query().Get("labelSelector") != "bench=write" {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, `{"items": [{"metadata": {"name": "b"}}, {"metadata": {"name": "a"}}]}`)
	}))
	defer server.Close()
	client := server.Client()
	client.Transport = redirect{client.Transport, server.Listener.Addr().String()}
	for want, acked := range map[int][]string{0: {"a", "b"}, 2: {"c", "a", "d"}} {
		if got, err := (api{client}).missing(t.Context(), acked); err != nil || got != want {
			t.Errorf("missing writes of %v: got %d, %v, want %d", acked, got, err, want)
		}
	}
}

// redirect sends requests for the API to a test's server.
type redirect struct {
	http.RoundTripper
	to string
}

func (r redirect) RoundTrip(q *http.Request) (*http.Response, error) {
	q = q.Clone(q.Context())
	q.URL.Host = r.to
	return r.RoundTripper.RoundTrip(q)
}

// The table and the JSON contain the figures of several machines, and no boots that were not measured.
func TestSeveralShown(t *testing.T) {
	t.Parallel()
	r := Report{Host: Host{CPUs: 2}, Several: &Several{Worker: []Timed{{0.9, 0.1}, {1.2, 0.1}, {1.1, 0.1}}, Acked: 7, Missing: 1, Joins: &Joins{Ratio: 3.5}}}
	var b strings.Builder
	show(&b, r)
	for _, want := range []string{"| worker: agent started to Ready, s", "| 0.90 | 1.10   | 1.20 | 1       | missed by 0.10 s", "| 3.50 | 3.50   | 3.50 | 4", "MISSED: 1 acknowledged"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("want %q, got\n%s", want, &b)
		}
	}
	for _, never := range []string{"node Ready, s", "five machines"} {
		if strings.Contains(b.String(), never) {
			t.Errorf("want no %q, which was not measured, got\n%s", never, &b)
		}
	}
	data, err := json.Marshal(r)
	if err != nil || !strings.Contains(string(data), `"several":{"worker":[{"value":0.9,"others":0.1}`) {
		t.Errorf("report in JSON: got %s, %v", data, err)
	}
}
