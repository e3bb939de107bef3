// SPDX-License-Identifier: Apache-2.0

package planner

import (
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/spec"
)

// volume is a path of the machine that a component's pod sees under the same name.
type volume struct {
	path     string
	kind     hostPath
	writable bool
}

type hostPath string

const (
	file   hostPath = "File"
	folder hostPath = "Directory"
	made   hostPath = "DirectoryOrCreate"
)

// mounts is what a component reads and writes of the machine, and nothing else: the folders that are named, the files that its flags
// name, and what its kubeconfigs refer to.
func (n *node) mounts(c spec.Component, p pod) []volume {
	var out []volume
	for _, m := range p.folders {
		out = append(out, volume{m.path, folder, m.writable})
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

// credentials are the files that a kubeconfig refers to.
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

// namesFile tells by a flag's name that its value is a file: a value that begins with a slash may also be a path of the API.
func namesFile(flag string) bool {
	return slices.ContainsFunc([]string{"file", "config", "certificate", "-key", "-authority", "-cert"}, func(end string) bool {
		return strings.HasSuffix(flag, end)
	})
}

// question is the kubelet's, by which it finds out that a process hangs. It shows no certificate, so it asks nobody who wants one.
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
