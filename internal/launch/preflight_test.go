// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"strings"
	"testing"

	"github.com/slipway-project/slipway/internal/preflight"
)

func TestRefuseProblemsCounts(t *testing.T) {
	t.Parallel()
	for want, n := range map[string]int{"this host has 1 problem; nothing": 1, "this host has 2 problems; nothing": 2} {
		if err := refuseProblems(make([]preflight.Finding, n)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if err := refuseProblems(nil); err != nil {
		t.Errorf("got %v", err)
	}
}
