// SPDX-License-Identifier: Apache-2.0

// Package staticpod gives a plan as a folder for a machine whose kubelet is there already: the manifests of its static pods, and the
// files that they read. It touches no disk, makes no keys, and renders nothing that is a process of the host: who has a kubelet has a
// runtime, too.
//
// Read [Render].
//
//	StaticPod etcd  →  File{Path: "etc/kubernetes/manifests/etcd.yaml", Mode: 0o600, …}
//	Unit kubelet    →  Left{Ref: unit/kubelet, Reason: "it is a process of the host, …"}
package staticpod

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/render"
)

// Render gives the manifests and files of a plan. A manifest's pod is one of its own for each content of the manifest; what the node
// would add to that, the content of what the pod reads, nobody knows here.
func Render(p plan.Plan) (render.Rendered, error) {
	var out render.Rendered
	for _, e := range p.Entries {
		switch it := e.Item.(type) {
		case plan.StaticPod:
			out.Add(strings.TrimPrefix(it.Path, "/"), 0o600, manifest(it), e.Ref)
		case plan.File:
			if len(it.Fill) > 0 {
				out.Leave(e.Ref, "a secret of the node is filled in where the file is used: the agent writes it")
				continue
			}
			out.Add(strings.TrimPrefix(it.Path, "/"), it.Mode, it.Content, e.Ref)
		default:
			out.Leave(e.Ref, reason(e.Item))
		}
	}
	return out.Finish(p)
}

// manifest puts a hash of the manifest where the node would put one of all that decides.
func manifest(p plan.StaticPod) string {
	if !p.Component {
		return p.Manifest
	}
	sum := sha256.Sum256([]byte(p.Name + "\x00" + p.Manifest))
	hash := hex.EncodeToString(sum[:])
	return strings.NewReplacer(plan.PodUID, hash[:32], plan.PodInputs, hash).Replace(p.Manifest)
}

func reason(item plan.Item) string {
	switch it := item.(type) {
	case plan.Unit:
		return "it is a process of the host, which a kubelet does not run: the agent does, or your init system (see the form systemd)"
	case plan.Artifact:
		return it.Name + " is " + it.Digest + " in the component store: images of it have to be imported before their pods run"
	case plan.Cert:
		return "keys are born on the node that uses them and never travel: the agent makes them"
	case plan.Kubeconfig:
		return "it comes with the node's own key: the agent writes it"
	case plan.Precondition:
		return it.Provider + " opens it; a kubelet knows no such wait, so what comes after it tries again by itself"
	case plan.Dir:
		return "make the folder " + it.Path + " before the kubelet starts; the agent does"
	case plan.Mount:
		return "mount " + it.Source + " at " + it.Target + " before the kubelet starts; the agent does"
	default:
		return "the agent makes it"
	}
}
