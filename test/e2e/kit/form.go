// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// formed gives a first up, or one with a spec of the test's, the form of the control plane that the cluster is to have. A cluster that
// is there keeps its form.
func (c *Cluster) formed(args []string) []string {
	if i := slices.Index(args, "--file"); i >= 0 && i+1 < len(args) {
		text, err := os.ReadFile(args[i+1])
		if err != nil || strings.Contains(string(text), "controlPlane:") {
			return args // for slipway to refuse, or for the test to decide
		}
		before, after, _ := strings.Cut(string(text), "\nspec:\n")
		out := slices.Clone(args)
		out[i+1] = c.spec(before + "\nspec:\n  controlPlane: {form: " + c.Form + "}\n" + after)
		return out
	}
	if _, err := os.Stat(filepath.Join(Root, "clusters", c.Name, "cluster.yaml")); err == nil {
		return args
	}
	rest, mains := without(args, "--control-planes")
	rest, workers := without(rest, "--workers")
	roles, more := "control-plane, worker", ""
	if workers > 0 {
		roles, more = "control-plane", fmt.Sprintf(", {name: worker, roles: [worker], count: %d}", workers)
	}
	return append(rest, "--file", c.spec(fmt.Sprintf(`apiVersion: slipway.dev/v1alpha1
kind: Cluster
metadata: {name: %s}
spec:
  controlPlane: {form: %s}
  pools: [{name: main, roles: [%s], count: %d}%s]
`, c.Name, c.Form, roles, max(mains, 1), more)))
}

// without takes a flag and its number out of a command line.
func without(args []string, flag string) (rest []string, n int) {
	i := slices.Index(args, flag)
	if i < 0 || i+1 >= len(args) {
		return slices.Clone(args), 0
	}
	n, _ = strconv.Atoi(args[i+1]) // slipway refuses what is no number
	return slices.Concat(args[:i], args[i+2:]), n
}

func (c *Cluster) spec(text string) string {
	c.T.Helper()
	path := filepath.Join(c.T.TempDir(), "cluster.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		c.T.Fatal(err)
	}
	return path
}

// OtherForm is a spec with the form that the cluster does not have.
func (c *Cluster) OtherForm() string {
	c.T.Helper()
	other := map[string]string{"StaticPods": "HostUnits"}[c.Form]
	if other == "" {
		other = "StaticPods"
	}
	return c.spec(fmt.Sprintf("apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata: {name: %s}\nspec:\n  controlPlane: {form: %s}\n", c.Name, other))
}
