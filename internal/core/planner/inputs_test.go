// SPDX-License-Identifier: Apache-2.0

package planner_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/plan"
)

// fileOf are the paths of an item that a process may be told to read.
func fileOf(it plan.Item) []string {
	switch it := it.(type) {
	case plan.File:
		return []string{it.Path}
	case plan.Kubeconfig:
		return []string{it.Path}
	case plan.Cert:
		return []string{it.Want.CertPath, it.Want.KeyPath}
	case plan.Dir, plan.Artifact, plan.Mount, plan.Unit, plan.StaticPod, plan.Precondition:
	}
	return nil
}

// What a component reads again by itself restarts nothing, and what it does not restarts it: no file of the plan is forgotten.
func TestInputsAreWhatIsNotReread(t *testing.T) {
	t.Parallel()
	p := planOf(t, completed(t, "apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata: {name: dev}\nspec: {pools: [{name: main, roles: [control-plane, worker], count: 3}]}\n"), "dev-main-0")
	made := map[string]plan.Ref{}
	leaves := map[plan.Ref]bool{}
	for _, e := range p.Entries {
		for _, path := range fileOf(e.Item) {
			made[path] = e.Ref
		}
		if c, ok := e.Item.(plan.Cert); ok && c.Want.Kind == pki.Leaf {
			leaves[e.Ref] = true
		}
	}
	looked := 0
	for _, e := range p.Entries {
		u, ok := e.Item.(plan.Unit)
		if !ok || u.Oneshot {
			continue
		}
		for _, in := range u.Inputs {
			if leaves[in] {
				t.Errorf("%s restarts when %s is renewed", u.Name, in)
			}
		}
		for _, arg := range u.Args[1:] {
			flag, value, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
			ref, isFile := made[value]
			if !isFile {
				continue
			}
			looked++
			again, known := rereads(u.Name, flag)
			if !known {
				t.Errorf("%s --%s: nobody has found out whether it reads %s again", u.Name, flag, value)
			}
			if is := slices.Contains(u.Inputs, ref); !is && !again {
				t.Errorf("%s --%s is not read again, and %s is no input", u.Name, flag, ref)
			}
		}
	}
	if looked < 40 {
		t.Errorf("found %d files in arguments: the test looks at the wrong thing", looked)
	}
}
