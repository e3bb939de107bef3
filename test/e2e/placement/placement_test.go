// SPDX-License-Identifier: Apache-2.0

// Package placement_test moves a user's units between the machines of a real cluster by changing labels. Nothing else may restart.
package placement_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/testkit"
	"github.com/slipway-project/slipway/test/e2e/kit"
)

// The label disk is on the first machine, on the second, or on both.
const specText = `apiVersion: slipway.dev/v1alpha1
kind: Cluster
metadata: {name: x}
spec:
  pools:
  - {name: main, roles: [control-plane, worker], count: 1%s}
  - {name: w, count: 1%s}
  units:
  - {name: web, exec: [/bin/sh, -c, "echo web of $DEFAULT_IPV4; exec sleep 100000"], on: {disk: [ssd, nvme]}, facts: [DEFAULT_IPV4]}
  - {name: side@, instances: [a], exec: [/bin/sleep, "100001"], with: [web]}
  - {name: rest, exec: [/bin/sleep, "100002"], global: true, conflicts: [web]}
  - {name: lost, exec: [/bin/sleep, "100003"], on: {disk: [tape]}}
`

// TestALabelMovesWhatDependsOnIt is TF-1, TF-7 and TF-8 with real machines.
func TestALabelMovesWhatDependsOnIt(t *testing.T) {
	c := kit.New(t, "placement")
	first, second := c, c.On(c.Name+"-w-0")
	up := func(main, w string) {
		t.Helper()
		labels := func(machine, disk string) string {
			if disk == "" {
				return ""
			}
			return fmt.Sprintf(", machineLabels: {%s: {disk: %s}}", machine, disk)
		}
		file := filepath.Join(t.TempDir(), "cluster.yaml")
		if err := os.WriteFile(file, fmt.Appendf(nil, specText, labels(first.Node, main), labels(second.Node, w)), 0o600); err != nil {
			t.Fatal(err)
		}
		c.MustUp("--file", file)
	}
	up("ssd", "")
	before := [2]map[string]int{pids(first), pids(second)}
	want(t, "first machine", []string{"user-side@a", "user-web"}, before[0])
	want(t, "second machine", []string{"user-rest"}, before[1])
	testkit.Until(t, time.Minute, "the unit has logged the machine's address", func() error {
		if r := first.TryExec(nil, "cat /var/log/slipway/user-web.log"); !strings.Contains(r.Out, "web of 10.") {
			return fmt.Errorf("%s", r)
		}
		return nil
	})
	if out := c.Slipway("units").Out; !strings.Contains(out, "it has no label disk, the unit needs tape") {
		t.Errorf("slipway units: want the reason why a unit runs nowhere, got %s", out)
	}

	up("", "nvme")
	after := [2]map[string]int{pids(first), pids(second)}
	want(t, "first machine without the label", []string{"user-rest"}, after[0])
	want(t, "second machine with the label", []string{"user-side@a", "user-web"}, after[1])
	for i := range before {
		if diff := cmp.Diff(ours(before[i]), ours(after[i])); diff != "" {
			t.Errorf("other processes of machine %d (- before, + after):\n%s", i, diff)
		}
	}

	up("ssd", "nvme") // the second machine still fits, so nothing moves back
	if diff := cmp.Diff(after, [2]map[string]int{pids(first), pids(second)}); diff != "" {
		t.Errorf("processes with the label on both machines (- before, + after):\n%s", diff)
	}
}

// pids returns the PIDs of the machine's units that do not exit by themselves, by name, when all units are ready.
func pids(c *kit.Cluster) map[string]int {
	c.T.Helper()
	var out map[string]int
	testkit.Until(c.T, time.Minute, "the units of "+c.Node+" are ready", func() error {
		units, err := c.Units()
		if err != nil {
			return err
		}
		for name, u := range units {
			if !u.Ready {
				return fmt.Errorf("%s is not ready", name)
			}
		}
		out = kit.Steady(units)
		return nil
	})
	return out
}

// ours returns the units that are not the user's.
func ours(all map[string]int) map[string]int {
	out := map[string]int{}
	for name, pid := range all {
		if !strings.HasPrefix(name, "user-") {
			out[name] = pid
		}
	}
	return out
}

// want fails the test unless exactly these units of the user run.
func want(t *testing.T, what string, names []string, have map[string]int) {
	t.Helper()
	users := map[string]bool{}
	for name := range have {
		if strings.HasPrefix(name, "user-") {
			users[name] = true
		}
	}
	wanted := map[string]bool{}
	for _, n := range names {
		wanted[n] = true
	}
	if diff := cmp.Diff(wanted, users); diff != "" {
		t.Errorf("units of the user on the %s (-want +got):\n%s", what, diff)
	}
}
