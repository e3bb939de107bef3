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

// A change of what is known is one whatever the files' times; what was not known is one unless it is certain that it was there.
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
		"known, as it was":              {before: []units.Input{input(conf, "1")}, now: conf, at: after},
		"known, another":                {before: []units.Input{input(conf, "0")}, now: conf, at: after, want: "file/" + file + " changed"},
		"unknown, older":                {now: conf, at: after},
		"unknown, younger":              {now: conf, at: written.Add(-time.Second), want: "file/" + file + " changed"},
		"unknown, as old":               {now: conf, at: written, want: "file/" + file + " changed"},
		"unknown, nobody knows since":   {now: conf, want: "file/" + file + " changed"},
		"unknown, begun in the future":  {now: conf, at: after.Add(time.Hour), want: "file/" + file + " changed"},
		"unknown, not there":            {now: plan.File{Path: file + ".not"}, at: after, want: "file/" + file + ".not changed"},
		"unknown, a link to who knows":  {now: plan.File{Path: link}, at: after, want: "file/" + link + " changed"},
		"unknown, a link to its digest": {now: bin, at: after},
		"unknown, half of it there": {
			now: plan.Cert{Want: pki.Want{Name: "ca", CertPath: file, KeyPath: file + ".key"}}, at: after, want: "cert/ca changed",
		},
		"unknown, all of it there": {now: plan.Cert{Want: pki.Want{Name: "ca", CertPath: file}}, at: after},
		"unknown, another unit":    {now: plan.Unit{Name: "u"}, at: after},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := units.Begun{Inputs: tc.before, At: tc.at}
			if why := b.Differs(plan.Unit{}, []units.Input{input(tc.now, "1")}); why != tc.want {
				t.Errorf("it differs by %q, want %q", why, tc.want)
			}
		})
	}
}

// laterThan is a time so long after one that the kernel's clock for files cannot take it for the same, and not in the future.
func laterThan(at time.Time) time.Time {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for now := range tick.C {
		if now.Sub(at) > 200*time.Millisecond {
			return now
		}
	}
	return time.Time{}
}

// What was not known is recorded as it is now; what was known stays as it was when the process was started.
func TestAdopt(t *testing.T) {
	t.Parallel()
	a, b := plan.File{Path: "/a"}, plan.File{Path: "/b"}
	was := units.Begun{Inputs: []units.Input{input(a, "1")}}
	if all, adopted := was.Adopt([]units.Input{input(a, "2")}); adopted || !cmp.Equal(all, was.Inputs, cmpopts.EquateComparable(plan.Ref{})) {
		t.Errorf("adopted %t, %+v", adopted, all)
	}
	all, adopted := was.Adopt([]units.Input{input(a, "2"), input(b, "3")})
	if diff := cmp.Diff([]units.Input{input(a, "1"), input(b, "3")}, all, cmpopts.EquateComparable(plan.Ref{})); diff != "" || !adopted {
		t.Errorf("adopted %t: %s", adopted, diff)
	}
}
