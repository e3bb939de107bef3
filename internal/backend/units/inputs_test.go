// SPDX-License-Identifier: Apache-2.0

package units_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/slipway-project/slipway/internal/backend/units"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/plan"
)

func input(it plan.Item, sum string) units.Input {
	return units.Input{Entry: plan.Entry{Ref: plan.RefOf(it), Item: it}, Sum: sum}
}

// A recorded input differs if its fingerprint does, whatever its times. An input that was not recorded
// differs unless it is certainly unchanged.
func TestDiffersByInputs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("sha256/0", link); err != nil {
		t.Fatal(err)
	}
	written := time.Now()
	after := laterThan(written)
	conf, bin := plan.File{Path: file}, plan.Artifact{Path: link}
	for name, tc := range map[string]struct {
		before []units.Input
		now    plan.Item
		at     time.Time
		want   string
	}{
		"recorded, unchanged":         {before: []units.Input{input(conf, "1")}, now: conf, at: after},
		"recorded, changed":           {before: []units.Input{input(conf, "0")}, now: conf, at: after, want: "file/" + file + " changed"},
		"new, older than the start":   {now: conf, at: after},
		"new, younger than the start": {now: conf, at: written.Add(-time.Second), want: "file/" + file + " changed"},
		"new, as old as the start":    {now: conf, at: written, want: "file/" + file + " changed"},
		"new, start time unknown":     {now: conf, want: "file/" + file + " changed"},
		"new, start in the future":    {now: conf, at: after.Add(time.Hour), want: "file/" + file + " changed"},
		"new, missing":                {now: plan.File{Path: file + ".not"}, at: after, want: "file/" + file + ".not changed"},
		"new, a link":                 {now: plan.File{Path: link}, at: after, want: "file/" + link + " changed"},
		"new, an artifact":            {now: bin, at: after},
		"new, key missing": {
			now: plan.Cert{Want: pki.Want{Name: "ca", CertPath: file, KeyPath: file + ".key"}}, at: after, want: "cert/ca changed",
		},
		"new, certificate only": {now: plan.Cert{Want: pki.Want{Name: "ca", CertPath: file}}, at: after},
		"new, a unit":           {now: plan.Unit{Name: "u"}, at: after},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := units.StartInfo{Inputs: tc.before, At: tc.at}
			if why := b.Differs(plan.Unit{}, []units.Input{input(tc.now, "1")}); why != tc.want {
				t.Errorf("got %q, want %q", why, tc.want)
			}
		})
	}
}

// laterThan waits until the kernel's coarse file timestamps are certainly past at, and returns the time.
func laterThan(at time.Time) time.Time {
	clockSkew := time.NewTicker(10 * time.Millisecond)
	defer clockSkew.Stop()
	for now := range clockSkew.C {
		if now.Sub(at) > 200*time.Millisecond {
			return now
		}
	}
	return time.Time{}
}

// New inputs are recorded as they are now; recorded ones keep their fingerprint.
func TestAddInputs(t *testing.T) {
	t.Parallel()
	a, b := plan.File{Path: "/a"}, plan.File{Path: "/b"}
	was := units.StartInfo{Inputs: []units.Input{input(a, "1")}}
	if all, added := was.AddInputs([]units.Input{input(a, "2")}); added || !cmp.Equal(all, was.Inputs, cmpopts.EquateComparable(plan.Ref{})) {
		t.Errorf("got added %t, %+v", added, all)
	}
	all, added := was.AddInputs([]units.Input{input(a, "2"), input(b, "3")})
	if diff := cmp.Diff([]units.Input{input(a, "1"), input(b, "3")}, all, cmpopts.EquateComparable(plan.Ref{})); diff != "" || !added {
		t.Errorf("got added %t: %s", added, diff)
	}
}
