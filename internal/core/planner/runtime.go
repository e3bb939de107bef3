// SPDX-License-Identifier: Apache-2.0

package planner

import (
	"fmt"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/plan"
)

// containerd adds the container runtime.
func (n *node) containerd() plan.Ref {
	conf := n.Add(plan.File{Path: config.ContainerdFile, Mode: 0o600, Content: n.containerdConfig()}, n.dirs["/etc/containerd"])
	needs := []plan.Ref{conf, n.dirs["/etc/cni/net.d"], n.dirs["/var/lib/containerd"], n.bins["containerd-shim-runc-v2"], n.bins["runc"], n.osModules}
	if !n.joins() {
		needs = append(needs, n.cni())
	}
	n.podNetwork()
	return n.unit("containerd", n.cfg.Cluster.Containerd, plan.Unit{
		Ready:    plan.Probe{Kind: plan.ProbeNotify},
		Inputs:   []plan.Ref{conf},
		OOMScore: -999,
	}, needs...)
}

// cni adds the pod network's configuration, without which no node is Ready. On a node of a cluster that goes on meanwhile it comes
// last, for pods are sent there at that moment: their images are there, and on a control plane the way to Services, which a worker's
// kube-proxy learns as soon. All else may start before.
func (n *node) cni(last ...plan.Ref) plan.Ref {
	return n.Add(plan.File{Path: "/etc/cni/net.d/10-slipway.conflist", Mode: 0o600, Content: n.cniConfig()},
		append([]plan.Ref{n.dirs["/etc/cni/net.d"], n.bins["bridge"], n.bins["host-local"], n.bins["loopback"], n.bins["portmap"]}, last...)...)
}

// joins tells that the node may come to a cluster that has pods already.
func (n *node) joins() bool {
	return !n.has(config.RoleControlPlane) || len(n.cfg.Cluster.EtcdMembers()) > 1
}

func (n *node) containerdConfig() string {
	return fmt.Sprintf(`# Written by slipway; see "slipway why file//etc/containerd/config.toml".
version = 4
root = "/var/lib/containerd"
state = "/run/containerd"
# Without these, as on a full disk, it is to end and to be started again, not to run on as half a runtime.
required_plugins = ["io.containerd.metadata.v1.bolt", "io.containerd.grpc.v1.cri"]

[plugins."io.containerd.server.v1.grpc"]
  address = %q

[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = %q
  [plugins."io.containerd.cri.v1.images".registry]
    config_path = "/etc/containerd/certs.d"

[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = %t
  enable_unprivileged_ports = true
  enable_unprivileged_icmp = true
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        BinaryName = %q
        SystemdCgroup = false
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = [%q]
    conf_dir = "/etc/cni/net.d"
`, config.ContainerdSocket, n.cfg.Cluster.PauseImage, !n.cfg.Facts.OOMScoreAdj, binPath("runc"), CNIDir)
}

// cniConfig is the pod network of one node: a bridge with this node's share of the pod range. Routes to the other nodes' shares
// are the agent's affair, who hears of them (docs/adr/0008).
func (n *node) cniConfig() string {
	return fmt.Sprintf(`{
  "cniVersion": "1.0.0",
  "name": "slipway",
  "plugins": [
    {
      "type": "bridge",
      "bridge": "cni0",
      "isGateway": true,
      "hairpinMode": true,
      "ipMasq": false,
      "mtu": 0,
      "ipam": {
        "type": "host-local",
        "ranges": [[{"subnet": %q}]],
        "routes": [{"dst": "0.0.0.0/0"}]
      }
    },
    {"type": "portmap", "capabilities": {"portMappings": true}, "backend": "nftables", "snat": true}
  ]
}
`, n.cfg.PodCIDR)
}

// images imports what runs in pods, from the component store: no registry is asked. One oneshot per image, side by side
// with the start of the control plane; on a worker one after the other, for its kubelet waits for the first alone.
func (n *node) images(runtime plan.Ref) ([]plan.Ref, error) {
	var refs []plan.Ref // the pause image, without which there is no pod, is the first
	for i, image := range n.imageNames() {
		name, ordinary := imageName(image), i < 2 // whose import others wait for
		digest, ok := n.components[image]
		if !ok {
			return nil, fmt.Errorf("plan %s: the bundle has no image %s: run slipway bundle build", n.cfg.Name, image)
		}
		var before, later []plan.Ref
		if i > 0 && !n.has(config.RoleControlPlane) {
			before, later = []plan.Ref{refs[0]}, n.later()
		}
		archive := n.Add(plan.Artifact{Path: "/opt/slipway/images/" + name + ".tar", Digest: digest, Name: image}, later...)
		n.imageRefs[image] = n.Add(plan.Unit{
			Name:    "image-" + name,
			Oneshot: true,
			Args:    []string{binPath("ctr"), "--namespace", "k8s.io", "images", "import", "--local", "--label", digestLabel(digest), "/opt/slipway/images/" + name + ".tar"},
			Ready: plan.Probe{
				Kind:     plan.ProbeExec,
				Args:     []string{binPath("ctr"), "--namespace", "k8s.io", "images", "list", "--quiet", imageFilter(image, digest)},
				Contains: image,
			},
		}, append(before, runtime, archive, n.bins["ctr"])...)
		if ordinary {
			refs = append(refs, n.imageRefs[image])
		}
	}
	return refs, nil
}

// imageNames lists what the node imports: the pause image, what ordinary pods run, and then what the components run as pods.
func (n *node) imageNames() []string {
	c := n.cfg.Cluster
	names := []string{c.PauseImage, c.CoreDNSImage}
	if n.asPods() && n.has(config.RoleControlPlane) {
		names = append(names, c.EtcdImage)
	}
	if n.asPods() {
		names = append(names, c.KubeImage)
	}
	return names
}
