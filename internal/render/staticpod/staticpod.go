// SPDX-License-Identifier: Apache-2.0

// Package staticpod renders a plan for a machine that already has a kubelet: the manifests of its static pods
// and the files that they read. It touches no disk, makes no keys, and omits units: a machine with a kubelet
// has a container runtime.
//
// Read [Render].
//
//	StaticPod etcd  →  File{Path: "etc/kubernetes/manifests/etcd.yaml", Mode: 0o600, …}
//	Unit kubelet    →  Omitted{Ref: unit/kubelet, Reason: "it is a process of the host…"}
package staticpod

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/render"
)

// Render renders the manifests and files of a plan. A component's pod changes with its manifest. Unlike on a
// node, it does not change with the content of the files it reads, which is not known here.
func Render(p plan.Plan) (render.Rendered, error) {
	var out render.Rendered
	for _, e := range p.Entries {
		switch it := e.Item.(type) {
		case plan.StaticPod:
			out.Add(strings.TrimPrefix(it.Path, "/"), 0o600, manifest(it), e.Ref)
		case plan.File:
			if len(it.Fill) > 0 {
				out.Omit(e.Ref, "the file contains a secret of the node: the agent writes it")
				continue
			}
			out.Add(strings.TrimPrefix(it.Path, "/"), it.Mode, it.Content, e.Ref)
		default:
			out.Omit(e.Ref, reason(e.Item))
		}
	}
	return out.Finish(p)
}

// manifest fills in the hash of the manifest where the agent would use a hash of all the pod's inputs.
func manifest(p plan.StaticPod) string {
	if !p.Component {
		return p.Manifest
	}
	sum := sha256.Sum256([]byte(p.Name + "\x00" + p.Manifest))
	hash := hex.EncodeToString(sum[:])
	return strings.NewReplacer(plan.PodUID, hash[:32], plan.PodInputs, hash).Replace(p.Manifest)
}

// reason explains why this format omits an item, and what to do about it.
func reason(item plan.Item) string {
	switch it := item.(type) {
	case plan.Unit:
		return "it is a process of the host: run it with the agent or with your init system (see --format systemd)"
	case plan.Artifact:
		return it.Name + " is " + it.Digest + " in the component store: import its images before the pods start"
	case plan.Cert:
		return "keys are generated on the node that uses them: the agent makes them"
	case plan.Kubeconfig:
		return "it contains the node's own key: the agent writes it"
	case plan.Precondition:
		return "provided by " + it.Provider + "; a kubelet cannot wait for it, so the pods that need it must retry"
	case plan.Dir:
		return "create the directory " + it.Path + " before the kubelet starts, or run the agent"
	case plan.Mount:
		return "mount " + it.Source + " at " + it.Target + " before the kubelet starts, or run the agent"
	default:
		return "the agent makes it"
	}
}
