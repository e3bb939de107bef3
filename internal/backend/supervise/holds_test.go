// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slipway-project/slipway/internal/core/plan"
)

func TestHolds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mark, data, file := filepath.Join(dir, "mark"), filepath.Join(dir, "data"), filepath.Join(dir, "file")
	for _, path := range []string{mark, data, file} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	away := filepath.Join(dir, "away")
	for name, tc := range map[string]struct {
		holds plan.Holds
		want  string // part of the refusal
	}{
		"nothing asked":      {},
		"first start":        {holds: plan.Holds{Mark: away, Data: away}},
		"first start, again": {holds: plan.Holds{Mark: away, Data: data}},
		"data there":         {holds: plan.Holds{Mark: mark, Data: data}},
		"data lost":          {holds: plan.Holds{Mark: mark, Data: away}, want: "lost data"},
		"data out of sight":  {holds: plan.Holds{Mark: mark, Data: filepath.Join(file, "x")}, want: "lost data"},
		"mark out of sight":  {holds: plan.Holds{Mark: filepath.Join(file, "x"), Data: away}, want: "lost data"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := checkHolds(tc.holds)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}
