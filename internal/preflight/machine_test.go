// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFixed(t *testing.T) {
	t.Parallel()
	before := []Finding{{ID: "nft", Severity: Problem}, {ID: "disk", Severity: OK}, {ID: "br_netfilter", Severity: Warning}, {ID: "memory", Severity: Problem}}
	after := []Finding{{ID: "nft", Severity: OK}, {ID: "disk", Severity: OK}, {ID: "br_netfilter", Severity: OK}, {ID: "memory", Severity: Warning}, {ID: "new", Severity: OK}}
	var got []string
	for _, f := range Fixed(before, after) {
		got = append(got, string(f.Severity)+" "+f.ID)
	}
	if diff := cmp.Diff([]string{"fixed nft", "ok disk", "fixed br_netfilter", "warning memory", "ok new"}, got); diff != "" {
		t.Error(diff)
	}
	if after[0].Severity != OK {
		t.Error("the findings were changed in place")
	}
}

// A module is no reason to refuse a host: whoever makes it a node loads it. So it is loaded where possible, and the rest goes on.
func TestModulesAreLoadedIfPossible(t *testing.T) {
	t.Parallel()
	findings := []Finding{{ID: "br_netfilter", Severity: Warning, Module: "no_such_module"}, {ID: "other", Severity: OK, Module: "x"}}
	if diff := cmp.Diff([]string{"no_such_module"}, Fixable(findings)); diff != "" {
		t.Error(diff)
	}
	var said []string
	in := installer{host: fake(t, map[string]string{"proc/modules": "", "proc/sys/kernel/osrelease": "0\n"}), progress: func(line string) { said = append(said, line) }}
	in.load(t.Context(), "no_such_module")
	if len(said) != 2 || said[0] != "$ modprobe no_such_module" || !strings.Contains(said[1], "load kernel module no_such_module") {
		t.Errorf("said %q", said)
	}
}
