// SPDX-License-Identifier: Apache-2.0

package planner

import (
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/spec"
)

// pod is what a component needs as a static pod in addition to what it needs as a unit.
type pod struct {
	image string
	cpu   string // the CPU request, which ordinary pods cannot take
	// dirs are mounted with their contents. Single files are found through flags and configuration files.
	dirs   []mount
	files  []string
	live   string   // path of the liveness probe; empty: none
	rights []string // capabilities; usually none
	search string   // PATH, for the programs that it runs
	guard  bool     // runs behind the data guard
}

type mount struct {
	path     string
	writable bool
}

// asPods reports whether the components run as static pods on this node.
func (n *node) asPods() bool { return n.cfg.Cluster.Form == spec.StaticPods }

// component adds a component in the form of the cluster. Flags, environment, readiness and order are the same in both forms.
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
		// A pod keeps the old version of a file that is mounted alone, so the entry that writes the file is an input.
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
		dir := path.Dir(u.DataGuard.Data) + "/manifest"
		it.At = dir + "/" + name + ".yaml"
		needs = append(needs, n.Add(plan.Dir{Path: dir, Mode: 0o700}, needs...))
	}
	return n.Add(it, needs...)
}

// maker returns the entry that writes a file.
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

// command is the component's own, or Slipway's data guard, which executes it.
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

// literally keeps Kubernetes from expanding variables: a unit's flags have none.
func literally(s string) string { return strings.ReplaceAll(s, "$(", "$$(") }

func stopTime(u plan.Unit) time.Duration {
	if u.StopTimeout > 0 {
		return u.StopTimeout
	}
	return 10 * time.Second
}

// volume is a path of the machine that a component's pod has under the same name.
type volume struct {
	path     string
	kind     hostPath
	writable bool
}

type hostPath string

const (
	file hostPath = "File"
	dir  hostPath = "Directory"
	made hostPath = "DirectoryOrCreate"
)

// mounts lists exactly what a component reads and writes on the machine: its directories, the files that its flags name,
// and the files that its kubeconfigs refer to.
func (n *node) mounts(c spec.Component, p pod) []volume {
	var out []volume
	for _, m := range p.dirs {
		out = append(out, volume{m.path, dir, m.writable})
	}
	if log := flag(c, "audit-log-path", "-"); strings.HasPrefix(log, "/") {
		out = append(out, volume{path.Dir(log), made, true})
	}
	files := slices.Clone(p.files)
	for _, name := range sorted(c.Flags) {
		if !namesFile(name) {
			continue
		}
		for _, v := range c.Flags[name] {
			files = append(files, strings.Split(v, ",")...)
		}
	}
	for _, f := range slices.Clone(files) {
		files = append(files, n.credentials(f)...)
	}
	slices.Sort(files)
	for _, f := range slices.Compact(files) {
		if strings.HasPrefix(f, "/") && !slices.ContainsFunc(out, func(v volume) bool { return v.path == f || strings.HasPrefix(f, v.path+"/") }) {
			out = append(out, volume{path: f, kind: file})
		}
	}
	return out
}

// credentials lists the files that a kubeconfig refers to.
func (n *node) credentials(kubeconfig string) []string {
	ref, ok := n.confs[kubeconfig]
	if !ok {
		return nil
	}
	e, _ := n.Find(ref)
	k, ok := e.Item.(plan.Kubeconfig)
	if !ok || k.Embed {
		return nil
	}
	return []string{k.CAFile, k.CertFile, k.KeyFile}
}

// namesFile reports whether a flag's value is a file. The value alone does not tell: paths of the API begin with a slash too.
func namesFile(flag string) bool {
	return slices.ContainsFunc([]string{"file", "config", "certificate", "-key", "-authority", "-cert"}, func(end string) bool {
		return strings.HasSuffix(flag, end)
	})
}

// question is the kubelet's liveness probe. The kubelet has no client certificate, so endpoints that require one get none.
func question(ready plan.Probe, live string) map[string]any {
	u, err := url.Parse(ready.URL)
	if err != nil || ready.Kind != plan.ProbeHTTP || ready.Cert != "" || live == "" {
		return nil
	}
	return map[string]any{"host": u.Hostname(), "port": number(u), "scheme": strings.ToUpper(u.Scheme), "path": live}
}

func number(u *url.URL) any {
	switch port := u.Port(); {
	case port != "":
		return atoi(port)
	case u.Scheme == "https":
		return 443
	}
	return 80
}

func atoi(digits string) int {
	n := 0
	for _, d := range digits {
		n = n*10 + int(d-'0')
	}
	return n
}

func probe(get map[string]any, period, failures int) map[string]any {
	return map[string]any{"httpGet": get, "periodSeconds": period, "timeoutSeconds": 10, "failureThreshold": failures}
}

// fileAssets adds the user's files.
func (n *node) fileAssets() {
	for _, f := range n.cfg.Cluster.FileAssets {
		if n.cfg.Pool.HasOneOf(f.Roles) {
			n.assets[f.Path] = n.Add(plan.File{Path: f.Path, Mode: uint32(f.Mode), Content: f.Content, UserOwned: true})
		}
	}
}

// staticPods adds the user's static pods. The kubelet starts them whenever it runs.
func (n *node) staticPods() {
	for _, p := range n.cfg.Cluster.StaticPods {
		if n.cfg.Pool.HasOneOf(p.Roles) {
			n.Add(plan.StaticPod{Name: p.Name, Path: config.ManifestsDir + "/" + p.Name + ".yaml", Manifest: p.Manifest}, n.dirs[config.ManifestsDir])
		}
	}
}

// assetsOf lists the user's files that a component's flags name: the component starts after them, and restarts when they
// change.
func (n *node) assetsOf(c spec.Component) []plan.Ref {
	var refs []plan.Ref
	for _, name := range sorted(c.Flags) {
		if !namesFile(name) {
			continue
		}
		for _, v := range c.Flags[name] {
			for _, path := range strings.Split(v, ",") {
				if ref, ok := n.assets[path]; ok && !slices.Contains(refs, ref) {
					refs = append(refs, ref)
				}
			}
		}
	}
	return refs
}
