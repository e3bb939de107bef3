// SPDX-License-Identifier: Apache-2.0

package planner

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/spec"
)

// pod is what a component needs as a static pod beyond what it needs as a unit.
type pod struct {
	image string
	cpu   string // requested, so that ordinary pods leave it some
	// folders are mounted with all that is in them. Single files need no mention: flags and configurations tell which.
	folders []mount
	files   []string
	live    string   // path that answers while the process is sound; empty: no question is asked
	rights  []string // capabilities; none is the rule
	search  string   // where it finds the programs that it runs
	guard   bool     // of its data, at each start
}

type mount struct {
	path     string
	writable bool
}

// asPods tells whether the components run as static pods on this node.
func (n *node) asPods() bool { return n.cfg.Cluster.Form == spec.StaticPods }

// component adds a component in the form of the cluster. Both forms have the same flags, environment, readiness and order.
func (n *node) component(name string, c spec.Component, u plan.Unit, p pod, needs ...plan.Ref) plan.Ref {
	if !n.asPods() {
		return n.unit(name, c, u, needs...)
	}
	image, ok := n.imageRefs[p.image]
	if !ok {
		panic("planner: no image " + p.image)
	}
	mounts := n.mounts(c, p)
	inputs := append(slices.Clone(u.Inputs), n.assetsOf(c)...)
	for _, m := range mounts {
		if m.kind != file {
			continue
		}
		// What is mounted as one file stays as it was until the pod is another: whoever makes it is an input.
		if ref, ok := n.maker(m.path); ok && !slices.Contains(inputs, ref) {
			inputs = append(inputs, ref)
		}
	}
	it := plan.StaticPod{
		Name: name, Path: config.ManifestsDir + "/" + name + ".yaml", Component: true,
		Manifest: yamlText(n.manifest(name, c, u, p, mounts)), Ready: u.Ready, Inputs: inputs, DataGuard: u.DataGuard, Image: p.image,
	}
	needs = append(append(needs, inputs...), image, plan.RefOf(plan.Unit{Name: "kubelet"}), n.dirs[config.ManifestsDir])
	if p.guard { // on the volume of the data: without the volume there is no manifest
		folder := path.Dir(u.DataGuard.Data) + "/manifest"
		it.At = folder + "/" + name + ".yaml"
		needs = append(needs, n.Add(plan.Dir{Path: folder, Mode: 0o700}, needs...))
	}
	return n.Add(it, needs...)
}

// maker finds the entry that makes a file.
func (n *node) maker(file string) (plan.Ref, bool) {
	for _, e := range n.Plan("", "", "").Entries {
		made := false
		switch it := e.Item.(type) {
		case plan.File:
			made = it.Path == file
		case plan.Kubeconfig:
			made = it.Path == file
		case plan.Cert:
			made = it.Want.CertPath == file || it.Want.KeyPath == file
		default:
		}
		if made {
			return e.Ref, true
		}
	}
	return plan.Ref{}, false
}

func (n *node) manifest(name string, c spec.Component, u plan.Unit, p pod, mounts []volume) map[string]any {
	var volumes, mounted []any
	for i, m := range mounts {
		id := fmt.Sprintf("m%d", i)
		volumes = append(volumes, map[string]any{"name": id, "hostPath": map[string]any{"path": m.path, "type": string(m.kind)}})
		mounted = append(mounted, map[string]any{"name": id, "mountPath": m.path, "readOnly": !m.writable})
	}
	container := map[string]any{
		"name": name, "image": p.image, "imagePullPolicy": "Never", "command": n.command(name, c, u, p), "env": environment(c, p),
		"resources":    map[string]any{"requests": map[string]any{"cpu": p.cpu}},
		"volumeMounts": mounted,
		"securityContext": map[string]any{
			"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
			"capabilities": map[string]any{"drop": []any{"ALL"}, "add": texts(p.rights)},
		},
	}
	if get := question(u.Ready, p.live); get != nil {
		container["startupProbe"] = probe(get, 5, 120)
		container["livenessProbe"] = probe(get, 10, 3)
	}
	return map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{
			"name": name, "namespace": "kube-system", "uid": plan.PodUID,
			"labels":      map[string]any{"component": name, "tier": "control-plane"},
			"annotations": map[string]any{"slipway.dev/hash": plan.PodInputs, "slipway.dev/node": n.cfg.Name, "slipway.dev/image": n.components[p.image]},
		},
		"spec": map[string]any{
			"hostNetwork": true, "priorityClassName": "system-node-critical", "priority": 2000001000, "enableServiceLinks": false,
			"terminationGracePeriodSeconds": int(stopTime(u) / time.Second),
			"securityContext":               map[string]any{"seccompProfile": map[string]any{"type": "RuntimeDefault"}},
			"containers":                    []any{container}, "volumes": volumes,
		},
	}
}

// command is the component's own, or, where data must not be begun anew, Slipway's guard, which becomes it.
func (n *node) command(name string, c spec.Component, u plan.Unit, p pod) []any {
	own := append([]string{"/" + name}, arguments(c)...)
	if p.guard {
		own = append([]string{
			config.SlipwayBinary, "pod-exec", "--mark=" + u.DataGuard.Mark, "--data=" + u.DataGuard.Data, "--fresh-start=" + u.DataGuard.FreshStart, "--env-file=" + u.EnvFile, "--",
		}, own...)
	}
	return texts(own)
}

func environment(c spec.Component, p pod) []any {
	var env []any
	if p.search != "" {
		env = append(env, map[string]any{"name": "PATH", "value": p.search})
	}
	for _, k := range sorted(c.Env) {
		env = append(env, map[string]any{"name": k, "value": literally(c.Env[k])})
	}
	return env
}

func texts(list []string) []any {
	out := make([]any, 0, len(list))
	for _, s := range list {
		out = append(out, literally(s))
	}
	return out
}

// literally keeps Kubernetes from filling in variables: a unit's flags have none.
func literally(s string) string { return strings.ReplaceAll(s, "$(", "$$(") }

func stopTime(u plan.Unit) time.Duration {
	if u.StopTimeout > 0 {
		return u.StopTimeout
	}
	return 10 * time.Second
}
