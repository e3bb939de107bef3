// SPDX-License-Identifier: Apache-2.0

// Package apply_test makes clusters of machines that exist: systemd as first process, a real sshd, nothing of slipway.
package apply_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/slipway-project/slipway/test/e2e/kit"
)

// site is an operator and some machines.
type site struct {
	kit.Operator
	machines []*kit.Cluster
	controls int            // so many of them, the first ones, are control planes
	users    map[int]string // who logs in there; root where nobody is named
}

func newSite(t *testing.T, machines, controls int) site {
	t.Helper()
	c := kit.New(t, "apply")
	s := site{Operator: c.NewOperator(), controls: controls, users: map[int]string{}}
	for i := range machines {
		s.machines = append(s.machines, c.Bare(i, s.Public))
	}
	return s
}

// spec writes a cluster of the site's machines. More is added below spec.
func (s site) spec(more string) (file string) {
	s.T.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata: {name: far}\nspec:\n%s", more)
	if s.Form != "" {
		fmt.Fprintf(&b, "  controlPlane: {form: %s}\n", s.Form)
	}
	b.WriteString("  pools:\n")
	for i, m := range s.machines {
		switch i {
		case 0:
			b.WriteString("    - name: cp\n      roles: [control-plane]\n      machines:\n")
		case s.controls:
			b.WriteString("    - name: w\n      roles: [worker]\n      machines:\n")
		}
		login := ""
		if user := s.users[i]; user != "" {
			login = ", ssh: {user: " + user + "}"
		}
		fmt.Fprintf(&b, "        - {name: n%d, address: %s%s}\n", i, m.Address(), login)
	}
	file = s.Path("cluster.yaml")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		s.T.Fatal(err)
	}
	return file
}

// without is the same site before its last machine was bought.
func (s site) without() site {
	s.machines = s.machines[:len(s.machines)-1]
	return s
}
