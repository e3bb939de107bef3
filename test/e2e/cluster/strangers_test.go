// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"testing"

	"github.com/slipway-project/slipway/test/e2e/kit"
)

// Where the components of the machine listen, in its own network.
const (
	apiServer         = "https://127.0.0.1:6443"
	controllerManager = "https://127.0.0.1:10257"
	scheduler         = "https://127.0.0.1:10259"
	kubelet           = "https://10.89.0.10:10250"
	etcd              = "https://10.89.0.10:2379"
	etcdPeers         = "https://10.89.0.10:2380"
)

// strangers has no credentials: they may ask for health, and for nothing else.
func strangers(t *testing.T, c *kit.Cluster) {
	for url, want := range map[string]int{
		apiServer + "/livez": 200, apiServer + "/readyz": 200, apiServer + "/healthz": 200,
		apiServer + "/": 401, apiServer + "/api": 401, apiServer + "/apis": 401, apiServer + "/version": 401, apiServer + "/metrics": 401,
		apiServer + "/openapi/v2": 401, apiServer + "/livez/etcd": 401, apiServer + "/debug/pprof/": 401,
		controllerManager + "/healthz": 200, controllerManager + "/metrics": 403, controllerManager + "/configz": 403,
		scheduler + "/healthz": 200, scheduler + "/metrics": 403, scheduler + "/configz": 403,
		kubelet + "/pods": 401, kubelet + "/metrics": 401, kubelet + "/healthz": 401, kubelet + "/configz": 401, kubelet + "/logs/": 401,
		kubelet + "/run/default/client/client": 401, kubelet + "/exec/default/client/client": 401,
	} {
		if code, body := c.HTTPS(t, "GET", url); code != want {
			t.Errorf("a stranger asks %s: %d, want %d: %.200s", url, code, want, body)
		}
	}
	for _, url := range []string{etcd + "/health", etcd + "/version", etcdPeers + "/members"} {
		if code, body := c.HTTPS(t, "GET", url); code != 0 {
			t.Errorf("a stranger is let in by %s: %d: %.200s", url, code, body)
		}
	}
	// The same questions with credentials are answered, so it was not the path that was refused.
	admin := kit.Certificate("etc-kubernetes/pki/super-admin")
	for _, url := range []string{apiServer + "/metrics", controllerManager + "/metrics", scheduler + "/metrics", kubelet + "/pods"} {
		if code, body := c.HTTPS(t, "GET", url, admin); code != 200 {
			t.Errorf("the administrator asks %s: %d: %.200s", url, code, body)
		}
	}
}

func kubeletAndEtcd(t *testing.T, c *kit.Cluster) {
	for cert, want := range map[string]int{
		"etc-kubernetes/pki/kubelet-client": 0, "etc-kubernetes/pki/super-admin": 0, "etc-kubernetes/pki/front-proxy-client": 0,
		"etc-kubernetes/pki/etcd/healthcheck-client": 200,
	} {
		if code, body := c.HTTPS(t, "GET", etcd+"/health", kit.Certificate(cert)); code != want {
			t.Errorf("etcd asked with the certificate %s: %d, want %d (0: refused): %s", cert, code, want, body)
		}
	}
}
