// SPDX-License-Identifier: Apache-2.0

package planner_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/spec"
)

// phaseSamples are items of each phase, on a control plane; one that a worker has, too, is the first.
var phaseSamples = map[string][]string{
	spec.PhasePrepare: {"unit/os-modules", "unit/os-sysctls", "dir//srv/a"},
	spec.PhaseFiles: {
		"artifact//opt/slipway/bin/kubelet", "cert/ca", "file//etc/sysctl.d/90-slipway.conf", "file//etc/containerd/config.toml",
		"kubeconfig//etc/kubernetes/kubelet.conf",
	},
	spec.PhaseRuntime:      {"unit/containerd", "unit/image-pause-3.10"},
	spec.PhaseEtcd:         {"etcd"},
	spec.PhaseControlPlane: {"kube-apiserver", "kube-scheduler", "kube-controller-manager"},
	spec.PhaseKubelet:      {"unit/kubelet"},
	spec.PhaseKubeProxy:    {"kube-proxy"},
	spec.PhaseNodeReady:    {"precondition/node-ready"},
}

// dependents wait for a hook after their phase.
var dependents = map[string][]string{
	spec.PhasePrepare: {"unit/containerd", "unit/kubelet"},
	spec.PhaseFiles:   {"unit/containerd", "etcd"},
	spec.PhaseRuntime: {"unit/kubelet"},
	spec.PhaseEtcd:    {"kube-apiserver"},
}

// TestHooksInEveryPlace: any hooks in any order create no cycle, and each hook is in its place.
func TestHooksInEveryPlace(t *testing.T) {
	t.Parallel()
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 7))
		var hooks []string
		for _, phase := range spec.Phases() {
			for _, side := range []string{"before", "after"} {
				for n := range r.IntN(3) {
					if side == "after" || phase != spec.PhaseNodeReady {
						hooks = append(hooks, fmt.Sprintf("  - {name: %s-%s-%d, %s: %s, command: [/bin/true]}\n", side, phase, n, side, phase))
					}
				}
			}
		}
		r.Shuffle(len(hooks), func(i, j int) { hooks[i], hooks[j] = hooks[j], hooks[i] })
		text := "apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata: {name: dev}\nspec:\n" +
			"  os: {timeSync: require, swap: \"off\", hostname: node, users: [{name: a}], directories: [{path: /srv/a, owner: a}, {path: /srv/b}], packages: {apt: [x]}}\n" +
			"  controlPlane: {form: " + []string{spec.HostUnits, spec.StaticPods}[seed%2] + "}\n" +
			"  hooks:\n" + strings.Join(hooks, "")
		if len(hooks) == 0 {
			continue
		}
		c := completed(t, text)
		p := planOf(t, c, "dev-main-0")
		wire, err := plan.Encode(p)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := plan.Decode(wire); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, text)
		}
		for _, h := range c.Hooks {
			placed(t, p, h.Name, h.Before, h.After)
		}
	}
}

func placed(t *testing.T, p plan.Plan, name, before, after string) {
	t.Helper()
	hook, ok := p.Find("unit/hook-" + name)
	if !ok {
		t.Errorf("hook %s is not in the plan", name)
		return
	}
	for _, sample := range phaseSamples[before+after] {
		e := component(t, p, sample)
		if before != "" && !closure(p, e)[hook.Ref] {
			t.Errorf("%s does not wait for hook %s", sample, name)
		}
		if after != "" && !closure(p, hook)[e.Ref] {
			t.Errorf("hook %s does not wait for %s", name, sample)
		}
	}
	for _, other := range dependents[after] {
		if e := component(t, p, other); !closure(p, e)[hook.Ref] {
			t.Errorf("%s does not wait for hook %s", other, name)
		}
	}
}

// component finds what runs under a name in either form, or an entry by its reference.
func component(t *testing.T, p plan.Plan, name string) plan.Entry {
	t.Helper()
	for _, ref := range []string{name, "unit/" + name, "staticpod/" + name} {
		if e, ok := p.Find(ref); ok {
			return e
		}
	}
	t.Fatalf("there is no %s: the test is out of date", name)
	return plan.Entry{}
}

// TestHookRunsOncePerContent: the mark follows the command, and nothing else.
func TestHookRunsOncePerContent(t *testing.T) {
	t.Parallel()
	mark := func(hook string) string {
		c := completed(t, "apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata: {name: dev}\nspec:\n  hooks: ["+hook+"]\n")
		e, _ := planOf(t, c, "dev-main-0").Find("unit/hook-a")
		return e.Item.(plan.Unit).Ready.Path
	}
	first := mark("{name: a, before: kubelet, command: [/bin/echo, one]}")
	if !strings.HasPrefix(first, "/var/lib/slipway/state/hooks/a.") {
		t.Errorf("mark %s", first)
	}
	if again := mark("{name: a, after: runtime, command: [/bin/echo, one], timeout: 1h}"); again != first {
		t.Errorf("another place makes another mark: %s", again)
	}
	for _, other := range []string{"{name: a, before: kubelet, command: [/bin/echo, two]}", "{name: a, before: kubelet, command: [/bin/echo, o, ne]}"} {
		if mark(other) == first {
			t.Errorf("%s has the same mark", other)
		}
	}
	if boot := mark("{name: a, before: kubelet, command: [/bin/echo, one], everyBoot: true}"); !strings.HasPrefix(boot, "/run/slipway/hooks/a.") {
		t.Errorf("mark of every boot %s", boot)
	}
}
