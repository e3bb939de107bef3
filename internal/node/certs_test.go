// SPDX-License-Identifier: Apache-2.0

package node

import (
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

// drawer is a custody that remembers what was asked of it.
type drawer struct{ renewed *[]string }

func (d drawer) Life(w pki.Want) (notBefore, notAfter, renewed time.Time, err error) {
	if w.Name == "lost" {
		return notBefore, notAfter, renewed, nil
	}
	return time.Unix(10, 0), time.Unix(40, 0), time.Unix(30, 0), nil
}

func (d drawer) RenewNow(w pki.Want) error {
	*d.renewed = append(*d.renewed, w.Name)
	return nil
}

func TestCertificates(t *testing.T) {
	t.Parallel()
	var asked []string
	a, err := New(Config{
		Host: has{}, PlanFile: filepath.Join(t.TempDir(), "plan.json"), Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Custody: drawer{&asked},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &service{agent: a}
	if _, err := s.Renew(t.Context(), &nodev1.RenewRequest{}); err == nil || !strings.Contains(err.Error(), "no plan yet") {
		t.Errorf("without a plan: %v", err)
	}
	var b plan.Builder
	for name, kind := range map[string]pki.Kind{"ca": pki.CA, "api": pki.Leaf, "lost": pki.Leaf, "sa": pki.KeyPair} {
		b.Add(plan.Cert{Want: pki.Want{Name: name, Kind: kind}})
	}
	a.kept.Want = rawPlan{Plan: b.Plan("c", "n", "1")}

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
		"unknown": {names: []string{"api", "nobody"}, err: "no certificate nobody; it has "},
	} {
		asked = nil
		_, err := s.Renew(t.Context(), &nodev1.RenewRequest{Names: tc.names})
		if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s: %v", name, err)
		}
		if len(asked) != tc.want {
			t.Errorf("%s: renewed %v", name, asked)
		}
	}
	if a.wanted == 0 || len(a.look) != 1 {
		t.Error("nobody looks at the machine")
	}
}
