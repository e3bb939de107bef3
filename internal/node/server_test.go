// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	nodev1 "github.com/slipway-project/slipway/api/node/v1"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/plan"
)

// recorder implements Custody and records the requests to renew.
type recorder struct{ renewed *[]string }

func (d recorder) Life(w pki.Want) (notBefore, notAfter, renewed time.Time, err error) {
	if w.Name == "lost" {
		return notBefore, notAfter, renewed, nil
	}
	return time.Unix(10, 0), time.Unix(40, 0), time.Unix(30, 0), nil
}

func (d recorder) RenewNow(w pki.Want) error {
	*d.renewed = append(*d.renewed, w.Name)
	return nil
}

func TestCertificates(t *testing.T) {
	t.Parallel()
	var asked []string
	a, err := New(Config{
		Host: tableHost{}, PlanFile: filepath.Join(t.TempDir(), "plan.json"), Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Custody: recorder{&asked},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &service{agent: a}
	if _, err := s.Renew(t.Context(), &nodev1.RenewRequest{}); err == nil || !strings.Contains(err.Error(), "not have a plan yet") {
		t.Errorf("without a plan: got %v", err)
	}
	var b plan.Builder
	for name, kind := range map[string]pki.Kind{"ca": pki.CA, "api": pki.Leaf, "lost": pki.Leaf, "sa": pki.KeyPair} {
		b.Add(plan.Cert{Want: pki.Want{Name: name, Kind: kind}})
	}
	a.stored.Want = rawPlan{Plan: b.Plan("c", "n", "1")}

	list, err := s.Certificates(t.Context(), &nodev1.CertificatesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int64{}
	for _, c := range list.GetCertificates() {
		got[c.GetName()] = c.GetNotAfterUnix()
	}
	if diff := cmp.Diff(map[string]int64{"ca": 40, "api": 40, "lost": 0}, got); diff != "" {
		t.Errorf("certificates (-want +got):\n%s", diff)
	}

	for name, tc := range map[string]struct {
		names []string
		want  int
		err   string
	}{
		"all":     {want: 2},
		"one":     {names: []string{"api"}, want: 1},
		"unknown": {names: []string{"api", "other"}, err: "no certificate other; it has "},
	} {
		asked = nil
		_, err := s.Renew(t.Context(), &nodev1.RenewRequest{Names: tc.names})
		if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s: got error %v", name, err)
		}
		if len(asked) != tc.want {
			t.Errorf("%s: got renewals %v", name, asked)
		}
	}
	if a.probesWanted == 0 || len(a.probe) != 1 {
		t.Error("no probe was requested")
	}
}

// tableHost is a host that answers from a table and panics on any change.
type tableHost struct {
	Host   // its other methods panic: Diff must not call them
	states map[string]plan.State
}

func (h tableHost) Observe(_ context.Context, e plan.Entry) (plan.State, error) {
	if s, ok := h.states[e.Ref.String()]; ok {
		return s, nil
	}
	return plan.State{}, errors.New("disk error")
}

func TestDiff(t *testing.T) {
	t.Parallel()
	var old plan.Builder
	old.Add(plan.File{Path: "/gone"})
	old.Add(plan.File{Path: "/gone-already"})
	var next plan.Builder
	conf := next.Add(plan.File{Path: "/conf"})
	next.Add(plan.File{Path: "/same"})
	next.Add(plan.File{Path: "/new"})
	next.Add(plan.File{Path: "/dark"})
	next.Add(plan.File{Path: "/shrug"})
	next.Add(plan.Unit{Name: "reader", Inputs: []plan.Ref{conf}}, conf)
	next.Add(plan.Unit{Name: "other"})
	next.Add(plan.Unit{Name: "absent", Inputs: []plan.Ref{conf}}, conf)
	next.Add(plan.Precondition{Name: "door"})

	good := plan.State{Existence: plan.Present, Matches: true, Ready: true}
	absent := plan.State{Existence: plan.Absent}
	a, err := New(Config{
		Host: tableHost{states: map[string]plan.State{
			"file//gone": good, "file//gone-already": absent, "file//same": good, "file//new": absent,
			"file//conf": {Existence: plan.Present, Detail: "its content differs"}, "file//shrug": {Detail: "a directory is in the way"},
			"unit/reader": good, "unit/other": good, "unit/absent": absent, "precondition/door": {},
		}},
		PlanFile: filepath.Join(t.TempDir(), "plan.json"), Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	a.stored.Want = rawPlan{Plan: old.Plan("c", "n", "1")}

	steps, unknown, err := a.Diff(t.Context(), next.Plan("c", "n", "1"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range append(steps, unknown...) {
		got = append(got, string(s.Verb)+" "+s.Ref.String()+": "+s.Why)
	}
	want := []string{
		"remove file//gone: the plan no longer has it",
		"replace file//conf: its content differs",
		"create file//new: it does not exist",
		"replace unit/reader: its input file//conf changes",
		"create unit/absent: it does not exist",
		" file//dark: disk error",
		" file//shrug: a directory is in the way",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
}
