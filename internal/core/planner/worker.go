// SPDX-License-Identifier: Apache-2.0

package planner

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/plan"
)

// kubelet starts when its runtime can answer. On a control plane it does not wait for the API server: it registers as soon
// as the API answers, and runs the static pods of its folder meanwhile. On one that joins, it waits until the API server is about
// to start: what registers in vain tries again only seconds later.
func (n *node) kubelet(runtime plan.Ref, images []plan.Ref) {
	c := n.cfg.Cluster.Kubelet
	conf := n.Add(plan.File{Path: config.KubeletFile, Mode: 0o600, Content: yamlText(c.Config)}, n.dirs["/var/lib/kubelet"])
	inputs := append(n.trust(), conf, n.confs[config.KubeletConf])
	if n.cfg.Facts.ResolvConf == config.ResolvConfFile {
		inputs = append(inputs, n.file(config.ResolvConfFile, 0o644, fmt.Sprintf(noUpstream, n.cfg.Facts.Address)))
	}
	needs := append(n.refs("ca", "kubelet"), runtime, n.dirs[config.ManifestsDir], n.podRules)
	if balancer := plan.RefOf(plan.Unit{Name: balancerUnit}); n.contains(balancer) {
		needs = append(needs, balancer)
	}
	if !n.voter.IsZero() {
		needs = append(needs, n.voter)
	}
	needs = append(needs, n.prepared...)
	n.unit("kubelet", c, plan.Unit{
		Ready:    kubeletProbe(c),
		Inputs:   inputs,
		OOMScore: -999,
	}, append(append(needs, inputs...), images...)...)
}

// trust is the cluster's CA, which clients read at their start; nothing on a worker, which is given it once.
func (n *node) trust() []plan.Ref {
	if !n.has(config.RoleControlPlane) {
		return nil
	}
	return n.refs("ca")
}

// noUpstream: CoreDNS does not start on an empty list of upstreams. The node itself refuses the question at once, which is
// the honest answer for names outside the cluster.
const noUpstream = "# Written by slipway: this machine has no upstream DNS server.\nnameserver %s\n"

func (n *node) kubeProxy() plan.Ref {
	c := n.cfg.Cluster.KubeProxy
	conf := n.file(config.KubeProxyFile, 0o600, yamlText(c.Config))
	needs := append(n.refs("ca", "kube-proxy"), conf, n.confs[config.KubeProxyConf])
	for _, before := range []plan.Ref{
		plan.RefOf(plan.Unit{Name: "kube-apiserver"}),      // sooner it would only try again, each time later
		plan.RefOf(plan.StaticPod{Name: "kube-scheduler"}), // one manifest at a time
	} {
		if n.contains(before) {
			needs = append(needs, before)
		}
	}
	if balancer := plan.RefOf(plan.Unit{Name: balancerUnit}); n.contains(balancer) {
		needs = append(needs, balancer)
	}
	return n.component("kube-proxy", c, plan.Unit{
		Ready:    proxyProbe(c),
		Inputs:   append(n.trust(), conf, n.confs[config.KubeProxyConf]),
		OOMScore: -999,
	}, pod{
		image: n.cfg.Cluster.KubeImage, cpu: "50m", live: "/livez", files: []string{config.KubeProxyConf}, rights: []string{"NET_ADMIN"},
		folders: []mount{{"/usr", false}}, search: "/usr/sbin:/usr/bin", // for nft, which it runs
	}, needs...)
}

func (n *node) contains(r plan.Ref) bool {
	_, ok := n.Find(r)
	return ok
}

// yamlText is deterministic: the encoder sorts keys.
func yamlText(v map[string]any) string {
	out, err := yaml.Marshal(v)
	if err != nil {
		panic("planner: " + err.Error()) // plain maps, lists and scalars always encode
	}
	return string(out)
}

func imageName(ref string) string {
	name := ref[strings.LastIndex(ref, "/")+1:]
	return strings.NewReplacer(":", "-").Replace(name)
}

// The label ties an imported image to the archive it came from, so that a new archive under the same name is imported.
const archiveLabel = "slipway.dev/archive"

func digestLabel(digest string) string { return archiveLabel + "=" + hexPart(digest) }

func imageFilter(image, digest string) string {
	return "name==" + image + `,labels."` + archiveLabel + `"==` + hexPart(digest)
}

func hexPart(digest string) string { return strings.TrimPrefix(digest, "sha256:") }
