// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slipway-project/slipway/internal/backend/hosttest"
	"github.com/slipway-project/slipway/internal/core/plan"
)

// A limit that cannot be is told in the unit's log, and the unit runs.
func TestLimitThatCannotBeIsTold(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ file, want string }{
		"more than any kernel allows": {"[Service]\nLimitNOFILE=99999999999\n", "LimitNOFILE=99999999999: it stays at "},
		"no number":                   {"LimitNOFILE=many\n", "LimitNOFILE=many: it is no number"},
		"not to be read":              {"", "limits are as they were: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			err := os.WriteFile(b.conf.Limits, []byte(tc.file), 0o600)
			if tc.file == "" {
				b.conf.Limits = filepath.Join(b.conf.Limits, "x") // below a file
			}
			if err != nil {
				t.Fatal(err)
			}
			h := b.host(t)
			u := hosttest.RealUnit(b.dir, "limited", hosttest.Behaviour{Ready: plan.ProbeTCP})
			do(t, h, plan.Create, u)
			await(t, h, u)
			log, err := os.ReadFile(h.Logs(u.Name))
			if err != nil || !strings.Contains(string(log), tc.want) {
				t.Errorf("its log is %q %v, want %q in it", log, err, tc.want)
			}
		})
	}
}
