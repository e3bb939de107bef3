// SPDX-License-Identifier: Apache-2.0

package flags_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slipway-project/slipway/test/e2e/kit"
)

// TestRichSpecBoots: what the spec says has arrived in the running cluster.
func TestRichSpecBoots(t *testing.T) {
	c := kit.New(t, "flags")
	file := filepath.Join(t.TempDir(), "rich.yaml")
	if err := os.WriteFile(file, []byte(rich), 0o600); err != nil {
		t.Fatal(err)
	}
	c.MustUp("--file", file) // the cluster DNS has answered for example.internal
	c.Healthy(30 * time.Second)

	t.Run("flags", func(t *testing.T) {
		for program, flags := range map[string][]string{
			"etcd":                    {"--quota-backend-bytes=4294967296", "--snapshot-count=5000"},
			"kube-apiserver":          {"--max-requests-inflight=500", "--service-cluster-ip-range=10.97.0.0/16", "--event-ttl=30m"},
			"kube-controller-manager": {"--concurrent-deployment-syncs=7", "--leader-elect=true"},
			"kube-scheduler":          {"--v=1"}, "kubelet": {"--v=1"}, "kube-proxy": {"--v=1"}, "containerd": {"--log-level=info"},
		} {
			args := c.Process(program).Args
			for _, flag := range flags {
				if !slices.Contains(args, flag) {
					t.Errorf("%s runs without %s: %v", program, flag, args)
				}
			}
		}
		if env, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(c.Process("etcd").PID), "environ")); err != nil || !slices.Contains(strings.Split(string(env), "\x00"), "GOGC=80") {
			t.Errorf("etcd's environment: %q, %v, want GOGC=80", env, err)
		}
	})
	t.Run("config files are decoded strictly", func(t *testing.T) {
		for _, program := range []string{"kubelet", "kube-proxy", "kube-scheduler"} {
			log := string(c.Read("log", "slipway", program+".log"))
			if strings.Contains(log, "lenient") || strings.Contains(log, "unknown field") {
				t.Errorf("%s does not know a field of its file:\n%s", program, log)
			}
		}
		var now struct {
			KubeletConfig struct {
				MaxPods              int
				ContainerLogMaxFiles int
				EvictionHard         map[string]string
				SystemReserved       map[string]string
				ClusterDomain        string
			}
		}
		text := c.Kubectl("get", "--raw", "/api/v1/nodes/"+c.Node+"/proxy/configz")
		if err := json.Unmarshal([]byte(text), &now); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		k := now.KubeletConfig
		if k.MaxPods != 60 || k.ContainerLogMaxFiles != 3 || k.EvictionHard["memory.available"] != "200Mi" || k.EvictionHard["nodefs.available"] == "" ||
			k.SystemReserved["cpu"] != "100m" || k.ClusterDomain != "example.internal" {
			t.Errorf("the kubelet works with %+v", k)
		}
		admin := kit.Certificate("etc-kubernetes/pki/super-admin")
		for url, words := range map[string]string{
			"https://127.0.0.1:10259/configz": `"schedulerName":"second"`, "https://127.0.0.1:10257/configz": `"ConcurrentDeploymentSyncs":7`,
		} {
			if code, body := c.HTTPS(t, "GET", url, admin); code != 200 || !strings.Contains(strings.ToLower(body), strings.ToLower(words)) {
				t.Errorf("%s: %d, without %s: %s", url, code, words, body)
			}
		}
	})
	t.Run("node, names and add-ons", func(t *testing.T) {
		for _, x := range []struct{ what, path, want string }{
			{"node/" + c.Node, `{.metadata.labels.example\.org/rack}`, "r7"},
			{"node/" + c.Node, `{.spec.taints[?(@.key=="example.org/soft")].effect}`, "PreferNoSchedule"},
			{"node/" + c.Node, `{.status.capacity.pods}`, "60"},
			{"node/" + c.Node, `{.spec.podCIDR}`, "10.45.0.0/24"},
			{"configmap/motd", `{.data.text}`, "from the spec"},
			{"service/kubernetes", `{.spec.clusterIP}`, "10.97.0.1"},
			{"deployment/coredns --namespace=kube-system", `{.spec.replicas}`, "2"},
		} {
			got := c.Kubectl(append(append([]string{"get"}, strings.Fields(x.what)...), "--output", "jsonpath="+x.path)...)
			if got != x.want {
				t.Errorf("%s %s: %q, want %q", x.what, x.path, got, x.want)
			}
		}
		for _, name := range []string{"api.example.org", "203.0.113.9", "kubernetes.default.svc.example.internal", "10.97.0.1", "127.0.0.1"} {
			if code, _ := c.HTTPS(t, "GET", "https://127.0.0.1:6443/livez", kit.ServerName(name)); code != 200 { // or it fails
				t.Errorf("API server by the name %s: %d", name, code)
			}
		}
	})
}
