// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strconv"

	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/core/spec"
)

// kubelet has flags only for what its file cannot express.
func kubelet(c Cluster, r catalog.Release) defaults {
	fields := kubeletIdentity(c)
	fields = append(fields, kubeletResources(c)...)
	fields = append(fields, kubeletTimes()...)
	fields = append(fields, restartsOfPods(c)...)
	if r.Has(catalog.CgroupV1Refused) {
		fields = append(fields, field{"failCgroupV1", true, std("false on a machine with cgroup v1")})
	}
	return defaults{
		env: idleHeap(),
		flags: []setting{
			{"config", KubeletFile, std("")},
			{"kubeconfig", KubeletConf, std("")},
			{"root-dir", KubeletDir, std("")},
			{"cert-dir", KubeletDir + "/pki", std("")},
			{"hostname-override", "${node.name}", from("the node's name")},
			{"node-ip", "${node.address}", from("the node's address")},
		},
		config: gateFields(c, fields),
	}
}

// kubeletIdentity is how the kubelet serves and whom it trusts.
func kubeletIdentity(c Cluster) []field {
	return []field{
		{"apiVersion", "kubelet.config.k8s.io/v1beta1", std("")},
		{"kind", "KubeletConfiguration", std("")},
		{"address", "0.0.0.0", std("")},
		{"port", 10250, std("")},
		{"readOnlyPort", 0, std("it would answer without authentication")},
		{"healthzBindAddress", "127.0.0.1", std("")},
		{"healthzPort", 10248, std("")},
		{"authentication.anonymous.enabled", false, std("")},
		{"authentication.webhook.enabled", true, std("")},
		{"authentication.webhook.cacheTTL", "2m0s", std("")},
		{"authentication.x509.clientCAFile", ClusterCA + ".crt", std("")},
		{"authorization.mode", "Webhook", std("")},
		{"rotateCertificates", true, std("")},
		{"serverTLSBootstrap", true, std("the serving certificate comes from the cluster CA")},
		{"tlsMinVersion", tlsMin, std("")},
		{"tlsCipherSuites", suites(), std("")},
		{"clusterDNS", []string{c.DNSAddress.String()}, from("networking.dnsAddress")},
		{"clusterDomain", c.ClusterDomain, from("networking.clusterDomain")},
		{"resolvConf", "/etc/resolv.conf", std("or what the machine reports")},
		{"registerNode", true, std("")},
		{"staticPodPath", ManifestsDir, std("")},
		{"containerRuntimeEndpoint", "unix://" + ContainerdSocket, std("")},
		{"enableDebuggingHandlers", true, std("kubectl logs and exec need them")},
		{"enableProfilingHandler", false, std("")},
		{"enableDebugFlagsHandler", false, std("")},
		{"enableSystemLogHandler", false, std("it would publish the node's /var/log")},
	}
}

// kubeletResources is what pods may use of the machine.
func kubeletResources(c Cluster) []field {
	return []field{
		{"cgroupDriver", "cgroupfs", std("systemd's driver is right only where systemd is PID 1")},
		{"cgroupsPerQOS", true, std("")},
		{"enforceNodeAllocatable", []string{"pods"}, std("")},
		{"failSwapOn", false, std("machines may have swap; pods do not use it")},
		{"memorySwap.swapBehavior", "NoSwap", std("")},
		maxPods(c),
		{"podPidsLimit", 4096, std("a fork bomb stays in its pod")},
		{"seccompDefault", true, std("")},
		{"protectKernelDefaults", false, std("the kubelet sets the sysctls it needs")},
		{"makeIPTablesUtilChains", false, std("kube-proxy uses nftables")},
		{"oomScoreAdj", oomScore, std("0 on a machine that may not lower it")},
		{`evictionHard["memory.available"]`, "100Mi", std("")},
		{`evictionHard["nodefs.available"]`, "1Gi", std("a percentage of a large disk would evict with much space left")},
		{`evictionHard["nodefs.inodesFree"]`, "5%", std("")},
		{`evictionHard["imagefs.available"]`, "1Gi", std("")},
		{"imageGCHighThresholdPercent", 100, std("images are not collected by age: an imported image cannot be pulled again")},
		{"imageGCLowThresholdPercent", 80, std("")},
		{"serializeImagePulls", false, std("")},
		{"containerLogMaxSize", "10Mi", std("")},
		{"containerLogMaxFiles", 5, std("")},
	}
}

// kubeletTimes are intervals, timeouts and rate limits.
func kubeletTimes() []field {
	return []field{
		{"nodeStatusUpdateFrequency", "10s", std("")},
		{"nodeStatusReportFrequency", "5m0s", std("")},
		{"nodeLeaseDurationSeconds", 40, std("")},
		{"syncFrequency", "1m0s", std("")},
		{"fileCheckFrequency", "20s", std("the kubelet notices changes of static pods at once in any case")},
		{"runtimeRequestTimeout", "2m0s", std("")},
		{"streamingConnectionIdleTimeout", "4h0m0s", std("")},
		{"shutdownGracePeriod", "0s", std("needs systemd-logind")},
		{"shutdownGracePeriodCriticalPods", "0s", std("")},
		{"kubeAPIQPS", 50, std("")},
		{"kubeAPIBurst", 100, std("")},
		{"eventRecordQPS", 50, std("")},
		{"eventBurst", 100, std("")},
	}
}

// restartsOfPods: Kubernetes' own limit of five minutes is too long for a control plane that runs as pods.
func restartsOfPods(c Cluster) []field {
	if on, set := c.FeatureGates["KubeletCrashLoopBackOffMax"]; c.Form != spec.StaticPods || set && !on {
		return nil
	}
	return []field{{"crashLoopBackOff.maxContainerRestartPeriod", "10s", from("controlPlane.form: a crashed control plane must not wait for minutes")}}
}

const (
	oomScore = -999
	podsMax  = 110 // Kubernetes' own limit
	unusable = 3   // of a node's pod CIDR: network, gateway and broadcast addresses
)

// maxPods is Kubernetes' own limit, or fewer where the node's pod CIDR has fewer addresses.
func maxPods(c Cluster) field {
	if room := 1<<(32-c.NodePodPrefix) - unusable; room < podsMax {
		return field{"maxPods", room, from("networking.nodePodPrefix /" + strconv.Itoa(c.NodePodPrefix))}
	}
	return field{"maxPods", podsMax, std("")}
}

// kubeProxy programs nftables.
func kubeProxy(c Cluster) defaults {
	const noSysctl = "0 keeps the sysctl, which a network namespace may not write"
	return defaults{
		env:   idleHeap(),
		flags: []setting{{"config", KubeProxyFile, std("")}},
		config: gateFields(c, []field{
			{"apiVersion", "kubeproxy.config.k8s.io/v1alpha1", std("")},
			{"kind", "KubeProxyConfiguration", std("")},
			{"mode", "nftables", std("")},
			{"clientConnection.kubeconfig", KubeProxyConf, std("")},
			{"clientConnection.qps", 50, std("")},
			{"clientConnection.burst", 100, std("")},
			{"bindAddress", "0.0.0.0", std("")},
			{"hostnameOverride", "${node.name}", from("the node's name")},
			{"clusterCIDR", c.PodCIDR.String(), from("networking.podCIDR")},
			{"detectLocalMode", "ClusterCIDR", std("")},
			{"metricsBindAddress", "127.0.0.1:10249", std("")},
			{"healthzBindAddress", "127.0.0.1:10256", std("load balancers that probe each node need 0.0.0.0:10256")},
			{"enableProfiling", false, std("")},
			proxyOOM(c),
			{"configSyncPeriod", "15m0s", std("")},
			{"nftables.minSyncPeriod", "100ms", std("Kubernetes' own 1s delays a new Service by up to as much")},
			{"nftables.syncPeriod", "30s", std("")},
			{"nftables.masqueradeBit", 14, std("")},
			{"nftables.masqueradeAll", false, std("")},
			{"conntrack.maxPerCore", 0, std(noSysctl)},
			{"conntrack.min", 0, std(noSysctl)},
			{"conntrack.tcpEstablishedTimeout", "0s", std(noSysctl)},
			{"conntrack.tcpCloseWaitTimeout", "0s", std(noSysctl)},
		}),
	}
}

// proxyOOM: in a pod, kube-proxy keeps the score that the kubelet sets, because it lacks the capability to lower it.
func proxyOOM(c Cluster) field {
	if c.Form == spec.StaticPods {
		return field{"oomScoreAdj", -997, from("controlPlane.form; 0 on a machine that may not lower it")}
	}
	return field{"oomScoreAdj", oomScore, std("0 on a machine that may not lower it")}
}

// containerd has a configuration file in TOML, which the planner writes.
func containerd() defaults {
	return defaults{env: smallHeap(), flags: []setting{
		{"config", ContainerdFile, std("")},
		{"log-level", "warn", std("")},
	}}
}

// gateFields adds spec.featureGates to a configuration file.
func gateFields(c Cluster, fields []field) []field {
	for name, on := range c.FeatureGates {
		fields = append(fields, field{"featureGates." + name, on, from("featureGates")})
	}
	return fields
}

// corefile is the usual configuration of CoreDNS. It has no lameduck, which would only delay the end of a pod that gets no
// more queries.
const corefile = `.:53 {
    errors
    health :8080
    ready :8181
    kubernetes DOMAIN in-addr.arpa ip6.arpa {
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 30
    }
    prometheus :9153
    forward . /etc/resolv.conf {
        max_concurrent 1000
    }
    cache 30
    loop
    reload
    loadbalance
}
`
