// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strconv"

	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/core/spec"
)

// kubelet: flags only for what its file cannot say.
func kubelet(c Cluster, r catalog.Release) defaults {
	fields := kubeletIdentity(c)
	fields = append(fields, kubeletResources(c)...)
	fields = append(fields, kubeletTimes()...)
	fields = append(fields, restartsOfPods(c)...)
	if r.Has(catalog.CgroupV1Refused) {
		fields = append(fields, field{"failCgroupV1", true, std("false on a machine with cgroup v1")})
	}
	return defaults{
		env: smallHeap(),
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

// kubeletIdentity is who it is, whom it serves, and whom it trusts.
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
		{"enableSystemLogHandler", false, std("the node's /var/log is nobody's business")},
	}
}

// kubeletResources is what pods may use of the machine.
func kubeletResources(c Cluster) []field {
	return []field{
		{"cgroupDriver", "cgroupfs", std("systemd's driver is right only where systemd is PID 1")},
		{"cgroupsPerQOS", true, std("")},
		{"enforceNodeAllocatable", []string{"pods"}, std("")},
		{"failSwapOn", false, std("machines with swap are welcome; pods do not use it")},
		{"memorySwap.swapBehavior", "NoSwap", std("")},
		maxPods(c),
		{"podPidsLimit", 4096, std("a fork bomb stays in its pod")},
		{"seccompDefault", true, std("")},
		{"protectKernelDefaults", false, std("the kubelet sets the sysctls it needs")},
		{"makeIPTablesUtilChains", false, std("kube-proxy uses nftables")},
		{"oomScoreAdj", oomScore, std("0 on a machine that may not lower it")},
		{`evictionHard["memory.available"]`, "100Mi", std("")},
		{`evictionHard["nodefs.available"]`, "1Gi", std("a share of a large disk would evict with much space left")},
		{`evictionHard["nodefs.inodesFree"]`, "5%", std("")},
		{`evictionHard["imagefs.available"]`, "1Gi", std("")},
		{"imageGCHighThresholdPercent", 100, std("no collection by age: an imported image cannot be pulled again")},
		{"imageGCLowThresholdPercent", 80, std("")},
		{"serializeImagePulls", false, std("")},
		{"containerLogMaxSize", "10Mi", std("")},
		{"containerLogMaxFiles", 5, std("")},
	}
}

func kubeletTimes() []field {
	return []field{
		{"nodeStatusUpdateFrequency", "10s", std("")},
		{"nodeStatusReportFrequency", "5m0s", std("")},
		{"nodeLeaseDurationSeconds", 40, std("")},
		{"syncFrequency", "1m0s", std("")},
		{"fileCheckFrequency", "20s", std("changes of static pods are seen at once all the same")},
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

// restartsOfPods: Kubernetes' own five minutes are too long for a control plane that comes and goes.
func restartsOfPods(c Cluster) []field {
	if on, said := c.Gates["KubeletCrashLoopBackOffMax"]; c.Form != spec.StaticPods || said && !on {
		return nil
	}
	return []field{{"crashLoopBackOff.maxContainerRestartPeriod", "10s", from("controlPlane.form: the control plane is not to wait for minutes")}}
}

const (
	oomScore = -999
	podsMax  = 110 // Kubernetes' own limit
	unusable = 3   // of a node's share: network, gateway and broadcast addresses
)

func maxPods(c Cluster) field {
	if room := 1<<(32-c.NodePodPrefix) - unusable; room < podsMax {
		return field{"maxPods", room, from("networking.nodePodPrefix /" + strconv.Itoa(c.NodePodPrefix))}
	}
	return field{"maxPods", podsMax, std("")}
}
