// SPDX-License-Identifier: Apache-2.0

package hosttest

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/plan"
)

// limitsHoldFromTheNextStart: an edit restarts nothing, and what cannot be reached keeps no unit from its start.
func limitsHoldFromTheNextStart(t *testing.T, k kit) {
	if k.Limit == nil {
		t.Skip("this host has no processes")
	}
	u := k.Unit("limited", Behaviour{Ready: plan.ProbeTCP})
	k.Limit("LimitNOFILE=777", "LimitNPROC=infinity")
	k.converge(u)
	first := k.openFiles("limited")
	k.Limit("LimitNOFILE=555")
	k.converge(u)
	k.wantStarts("limited", 1)
	still := k.openFiles("limited")
	k.Crash("limited")
	k.wantStarts("limited", 2)
	k.await(u)
	if diff := cmp.Diff([]string{"777 777", "777 777", "555 555"}, []string{first, still, k.openFiles("limited")}); diff != "" {
		t.Errorf("open files, soft and hard: %s", diff)
	}
	k.Limit("LimitNOFILE=99999999999") // more than any kernel allows
	k.converge(u)
	k.Crash("limited")
	k.wantStarts("limited", 3)
	k.await(u)
}

// openFiles are the soft and the hard limit of the unit's open files, as the kernel has them.
func (k kit) openFiles(unit string) string {
	k.t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", k.Main(unit)))
	if err != nil {
		k.t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(data), "Max open files")
	words := strings.Fields(line)
	if len(words) < 2 {
		k.t.Fatalf("limits: %s", data)
	}
	return words[0] + " " + words[1]
}
