// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"os"
	"path/filepath"
	"strings"
)

// Diagnose prints what one wants to know of a cluster that failed a test. It never fails itself.
func (c *Cluster) Diagnose() {
	r := run(c.T, upLimit, nil, c.Bin, "status", "--name", c.Name)
	c.T.Logf("---- slipway status\n%s%s", r.Out, r.Err)
	for _, machine := range c.Machines() {
		on := c.On(machine)
		logs, _ := filepath.Glob(on.Data("log", "slipway", "*.log"))
		for _, path := range append(logs, filepath.Join(on.Folder(), "console.log")) {
			text, err := os.ReadFile(path)
			if err != nil || len(strings.TrimSpace(string(text))) == 0 {
				continue
			}
			c.T.Logf("---- last lines of %s, %s\n%s", filepath.Base(path), machine, lastLines(string(text), 6))
		}
	}
	if _, err := os.Stat(c.Kubeconfig()); err == nil {
		r := run(c.T, upLimit, nil, Component(c.T, "kubectl"), "--kubeconfig", c.Kubeconfig(), "--request-timeout", "5s", "get", "nodes,pods", "--all-namespaces", "--output", "wide")
		c.T.Logf("---- kubectl get nodes,pods\n%s%s", r.Out, r.Err)
	}
}
