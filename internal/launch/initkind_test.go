// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"strings"
	"testing"

	"github.com/slipway-project/slipway/internal/machine"
)

func TestSettleInit(t *testing.T) {
	t.Parallel()
	one := []machine.Status{{Name: "dev-main-0", Init: machine.Systemd}}
	for name, tc := range map[string]struct {
		have         []machine.Status
		wanted, want machine.InitKind
		refused      string
	}{
		"a new cluster, no word":  {nil, "", "", ""},
		"a new cluster":           {nil, machine.Systemd, machine.Systemd, ""},
		"a machine more, no word": {one, "", machine.Systemd, ""},
		"a machine more":          {one, machine.Systemd, machine.Systemd, ""},
		"another":                 {one, machine.OwnInit, "", "machine dev-main-0 boots with init systemd, and --init says slipway"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := settleInit("dev", tc.have, tc.wanted)
			if got != tc.want || (err == nil) != (tc.refused == "") || err != nil && !strings.Contains(err.Error(), tc.refused) {
				t.Errorf("%q, %v; want %q, %q", got, err, tc.want, tc.refused)
			}
		})
	}
}
