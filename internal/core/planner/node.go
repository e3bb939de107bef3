// SPDX-License-Identifier: Apache-2.0

package planner

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/spec"
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

// cni adds the configuration of the pod network, without which a node is not Ready. On a node that joins a running cluster
// it comes last, because pods are scheduled as soon as the node is Ready: by then their images are imported and, on a
// control plane, kube-proxy serves Services; on a worker, kube-proxy follows at once.
func (n *node) cni(last ...plan.Ref) plan.Ref {
	return n.Add(plan.File{Path: "/etc/cni/net.d/10-slipway.conflist", Mode: 0o600, Content: n.cniConfig()},
		append([]plan.Ref{n.dirs["/etc/cni/net.d"], n.bins["bridge"], n.bins["host-local"], n.bins["loopback"], n.bins["portmap"]}, last...)...)
}

// joins reports whether the node may join a cluster that has pods already.
func (n *node) joins() bool {
	return !n.has(config.RoleControlPlane) || len(n.cfg.Cluster.EtcdMembers()) > 1
}

func (n *node) containerdConfig() string {
	return fmt.Sprintf(`# Written by slipway; see "slipway why file//etc/containerd/config.toml".
version = 4
root = "/var/lib/containerd"
state = "/run/containerd"
# Without these, as on a full disk, containerd exits and is restarted, instead of running incompletely.
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

// cniConfig is the pod network of one node: a bridge with this node's pod CIDR. The agent maintains the routes to the pod
// CIDRs of other nodes (docs/adr/0008). Without an MTU, the kernel chooses.
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
      "mtu": %d,
      "ipam": {
        "type": "host-local",
        "ranges": [[{"subnet": %q}]],
        "routes": [{"dst": "0.0.0.0/0"}]
      }
    },
    {"type": "portmap", "capabilities": {"portMappings": true}, "backend": "nftables", "snat": true}
  ]
}
`, cmp.Or(n.cfg.Cluster.MTU, n.cfg.Facts.MTU), n.cfg.PodCIDR)
}

// images imports the images of pods from the component store, without a registry: one oneshot per image, in parallel with
// the start of the control plane. On a worker, the others wait for the first, which is the only one that the kubelet needs.
func (n *node) images(runtime plan.Ref) ([]plan.Ref, error) {
	var refs []plan.Ref // the first is the pause image, which every pod needs
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

// imageNames lists the images that the node imports: pause, those of ordinary pods, and then those of components that run as pods.
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

const balancerUnit = "api-balancer"

// balancer adds a worker's connection to the API servers: a separate process, so that it survives the agent.
func (n *node) balancer() {
	address := strings.TrimPrefix(n.apiURL(), "https://")
	n.Add(plan.Unit{
		Name: balancerUnit,
		Args: []string{
			config.SlipwayBinary, balancerUnit, "--listen=" + address, "--roster=" + config.RosterFile,
			"--ca=" + config.JoinCA + ".crt", "--cluster-ca=" + config.ClusterCA + ".crt",
		},
		Ready:    plan.Probe{Kind: plan.ProbeNotify},
		OOMScore: -997,
	}, n.certs["ca"])
}

// podNetwork masquerades traffic from pods to destinations outside the cluster. Traffic between pods and nodes keeps its
// addresses. CNI's own masquerading would also hide pods from the pods of other nodes.
func (n *node) podNetwork() {
	source := "ip saddr " + n.cfg.PodCIDR.String()
	rules := n.Add(plan.File{Path: config.PodNetworkFile, Mode: 0o600, Content: fmt.Sprintf(`# Written by slipway.
table ip slipway {}
delete table ip slipway
table ip slipway {
  chain postrouting {
    type nat hook postrouting priority srcnat; policy accept;
    %s ip daddr != { %s, 224.0.0.0/4 } counter masquerade
  }
%s}
`, source, n.cfg.Cluster.PodCIDR, n.agentsApart(source))}, n.dirs["/etc/kubernetes"])
	n.podRules = n.Add(plan.Unit{
		Name:    "pod-network",
		Oneshot: true,
		Args:    []string{"/usr/bin/env", "nft", "-f", config.PodNetworkFile},
		Inputs:  []plan.Ref{rules},
		Ready:   plan.Probe{Kind: plan.ProbeExec, Args: []string{"/usr/bin/env", "nft", "list", "table", "ip", "slipway"}, Contains: source},
	}, rules, n.osModules)
}

// agentsApart blocks pods from the agents of other machines where an address grants a right: a pod's traffic has the
// address of its node.
func (n *node) agentsApart(source string) string {
	if !slices.ContainsFunc(n.cfg.Cluster.Pools, func(p config.Pool) bool { return p.Replacement == spec.ByAddress }) {
		return ""
	}
	return fmt.Sprintf(`  chain forward {
    type filter hook forward priority filter; policy accept;
    %s tcp dport { %d, %d, %d } counter reject with tcp reset
  }
`, source, config.JoinPort, config.InitPort, config.StorePort)
}

// EtcdPermit returns the content of the permit with which a control plane's etcd bootstraps a cluster.
func EtcdPermit(cfg config.Node) []byte {
	peer := flag(cfg.Cluster.Etcd, "initial-advertise-peer-urls", "https://"+cfg.Facts.Address.String()+":2380")
	name := flag(cfg.Cluster.Etcd, "name", cfg.Name)
	return []byte("ETCD_INITIAL_CLUSTER=" + name + "=" + peer + "\nETCD_INITIAL_CLUSTER_STATE=new\n")
}

// kubelet starts when its runtime answers. On a control plane it does not wait for the API server: it registers as soon as
// the API answers, and runs its static pods in the meantime. On a control plane that joins, it waits until the API server
// is about to start: a failed registration is retried only after seconds.
func (n *node) kubelet(runtime plan.Ref, images []plan.Ref) {
	c := n.cfg.Cluster.Kubelet
	conf := n.Add(plan.File{Path: config.KubeletFile, Mode: 0o600, Content: yamlText(c.Config)}, n.dirs["/var/lib/kubelet"])
	inputs := append(n.trust(), conf, n.confs[config.KubeletConf])
	if !n.cfg.Facts.UpstreamDNS {
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

// trust is the cluster's CA, which clients read at their start. It is empty on a worker, where the CA never changes.
func (n *node) trust() []plan.Ref {
	if !n.has(config.RoleControlPlane) {
		return nil
	}
	return n.refs("ca")
}

// noUpstream: CoreDNS does not start with an empty list of upstreams. The node itself refuses such queries at once, which
// is the correct answer for names outside the cluster.
const noUpstream = "# Written by slipway: this machine has no upstream DNS server.\nnameserver %s\n"

func (n *node) kubeProxy() plan.Ref {
	c := n.cfg.Cluster.KubeProxy
	conf := n.file(config.KubeProxyFile, 0o600, yamlText(c.Config))
	needs := append(n.refs("ca", "kube-proxy"), conf, n.confs[config.KubeProxyConf])
	for _, before := range []plan.Ref{
		plan.RefOf(plan.Unit{Name: "kube-apiserver"}),      // before that it only retries, with growing delays
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
		dirs: []mount{{"/usr", false}}, search: "/usr/sbin:/usr/bin", // for nft, which it runs
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

// archiveLabel records the archive of an imported image, so that a new archive under the same name is imported.
const archiveLabel = "slipway.dev/archive"

func digestLabel(digest string) string { return archiveLabel + "=" + hexPart(digest) }

func imageFilter(image, digest string) string {
	return "name==" + image + `,labels."` + archiveLabel + `"==` + hexPart(digest)
}

func hexPart(digest string) string { return strings.TrimPrefix(digest, "sha256:") }
