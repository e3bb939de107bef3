// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/spec"
)

// TestFixedPointRandomly overrides at random, with an eye to what YAML makes difficult. JSON is YAML, so the documents are
// written by a writer that is not ours.
func TestFixedPointRandomly(t *testing.T) {
	t.Parallel()
	const rounds = 200
	done := 0
	for seed := range uint64(rounds) {
		r := rand.New(rand.NewPCG(seed, 1))
		doc, err := json.Marshal(randomSpec(r))
		if err != nil {
			t.Fatal(err)
		}
		s, problems := spec.Parse("spec.yaml", doc, spec.Options{})
		if len(problems) > 0 {
			t.Fatalf("seed %d: the test wrote a bad spec:\n%s\n%s", seed, lines(problems), doc)
		}
		c, problems := config.Complete(s, withoutTables())
		if len(problems) > 0 {
			continue
		}
		done++
		first := config.Print(c)
		again, problems := completeFor(t, string(first), withoutTables())
		if diff := cmp.Diff(string(first), string(config.Print(again))); diff != "" || len(problems) > 0 {
			t.Fatalf("seed %d: %s\n%s\ncompleted twice (-first +second):\n%s", seed, doc, lines(problems), diff)
		}
		again.Origins, c.Origins = nil, nil
		if diff := cmp.Diff(c.Kubelet.Config, again.Kubelet.Config); diff != "" {
			t.Fatalf("seed %d: the kubelet's configuration changed:\n%s", seed, diff)
		}
	}
	if done < rounds/2 {
		t.Errorf("only %d of %d rounds were without conflicts", done, rounds)
	}
}

func randomSpec(r *rand.Rand) map[string]any {
	components := map[string]any{}
	for _, name := range []string{"etcd", "apiserver", "controllerManager", "scheduler", "kubelet", "kubeProxy", "containerd"} {
		x := map[string]any{"flags": randomFlags(r), "env": map[string]any{"A": oddLine(r), "GOGC": 50}}
		if name == "scheduler" || name == "kubelet" || name == "kubeProxy" {
			x["config"] = randomPatch(r, 0)
		}
		components[name] = x
	}
	pool := map[string]any{"name": "p", "count": 1 + 2*r.IntN(2), "labels": map[string]any{"a": "1", "no": "null", "b.c/d": ""}}
	if r.IntN(2) == 0 {
		pool["roles"] = []string{"control-plane"}
	}
	if r.IntN(3) == 0 {
		pool["taints"] = []any{}
	}
	return map[string]any{
		"apiVersion": spec.APIVersion, "kind": spec.Kind, "metadata": map[string]any{"name": "dev"},
		"spec": map[string]any{
			"kubernetesVersion": withoutTables().Minor(),
			"pools":             []any{pool}, "components": components, "featureGates": map[string]any{"A": true, "B": r.IntN(2) == 0},
			"addOns": []any{map[string]any{"name": "a", "manifest": "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n# " + oddLine(r) + strings.ReplaceAll(oddEnd(r), "\t#", "#\t")}},
		},
	}
}

// randomFlags takes away, repeats, sets and invents.
func randomFlags(r *rand.Rand) map[string]any {
	out := map[string]any{}
	for range r.IntN(4) {
		name := []string{"secure-port", "leader-elect", "tls-min-version", "config", "data-dir", "feature-gates", "v", "new-one", "no"}[r.IntN(9)]
		out[name] = []any{nil, oddLine(r), 6443, true, []any{oddLine(r), 1.5}, []any{"x"}, "6443", false}[r.IntN(8)]
	}
	return out
}

// randomPatch goes where there are defaults and where there are none.
func randomPatch(r *rand.Rand, depth int) map[string]any {
	keys := []string{
		"authentication", "webhook", "x509", "enabled", "clientCAFile", "evictionHard", "memory.available", "nftables", "minSyncPeriod",
		"conntrack", "min", "clientConnection", "qps", "leaderElection", "leaderElect", "maxPods", "clusterDNS", "featureGates", "A", "B", "new", "a b", "\"", "",
	}
	out := map[string]any{}
	for range r.IntN(7) {
		out[keys[r.IntN(len(keys))]] = randomValue(r, depth)
	}
	return out
}

func randomValue(r *rand.Rand, depth int) any {
	const deepest = 3
	if depth < deepest && r.IntN(3) > 0 {
		return randomPatch(r, depth+1)
	}
	return []any{
		nil, true, false, 0, -7, 1 << 40, 0.25, 1e30, 3.0, oddLine(r), oddLine(r) + "\n" + oddLine(r) + oddEnd(r),
		[]any{},
		[]any{nil, oddLine(r) + oddEnd(r), map[string]any{"k": nil, "": 1}},
		map[string]any{},
		110, "2m0s",
		[]any{"10.96.0.10"},
		"10.96.0.10",
	}[r.IntN(18)]
}

func oddLine(r *rand.Rand) string {
	return []string{
		"", "a", "yes", "null", "1", "1.40", "0x10", "1e3", " a", "a ", "a: b", "a #b", "- a", "[a", "{a}", "&a", "*a", "!a", "|", ">", "%a", "@a", "`a", "'a'",
		`"a"`, `\a`, "a,b", "é", "日本", "~", "=", "<<", "2026-11-20", "10.96.0.0/16", "1.2.3", "...", "---", "?", "? a", ":", "a:", "${node.name}", ".inf",
	}[r.IntN(43)]
}

func oddEnd(r *rand.Rand) string {
	return []string{"", "\n", "\n\n", "\n  \n", "\n\t# x\n", "\n---\n"}[r.IntN(6)]
}
