// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"bytes"
	"encoding/base64"
	"encoding/pem"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slipway-project/slipway/test/e2e/kit"
)

const canary = "canary-7f3a91d2c4"

const etcdctl = "etcdctl --endpoints=https://127.0.0.1:2379 --cacert=/etc/kubernetes/pki/etcd/ca.crt " +
	"--cert=/etc/kubernetes/pki/etcd/healthcheck-client.crt --key=/etc/kubernetes/pki/etcd/healthcheck-client.key "

func secretInEtcd(c *kit.Cluster) {
	t := c.T
	c.Kubectl("create", "configmap", "canary", "--from-literal=value="+canary)
	c.Kubectl("create", "secret", "generic", "canary", "--from-literal=value="+canary)
	if open := c.Exec(etcdctl + "get --print-value-only /registry/configmaps/default/canary"); !strings.Contains(open, canary) {
		t.Fatalf("ConfigMap in etcd: got %q, want plain text: the test reads the wrong key", open)
	}
	raw := c.Exec(etcdctl + "get --print-value-only /registry/secrets/default/canary")
	if !strings.HasPrefix(raw, "k8s:enc:secretbox:v1:") {
		t.Errorf("Secret in etcd: got prefix %.30q, want k8s:enc:secretbox:v1:", raw)
	}
	for _, form := range []string{canary, base64.StdEncoding.EncodeToString([]byte(canary))} {
		if strings.Contains(raw, form) {
			t.Errorf("the Secret is readable in etcd as %q", form)
		}
	}
}

func keyFiles(c *kit.Cluster) {
	t := c.T
	found := 0
	for _, dir := range []string{c.Data("etc-kubernetes"), c.Data("kubelet", "pki")} {
		kit.Files(t, dir, func(path string, info fs.FileInfo) {
			text := c.ReadFile(path)
			private := bytes.Contains(text, []byte("PRIVATE KEY")) || bytes.Contains(text, []byte("client-key-data")) ||
				strings.HasSuffix(path, ".key") || strings.HasSuffix(path, "encryption.yaml")
			if !private {
				return
			}
			found++
			if mode := info.Mode().Perm(); mode != 0o600 {
				t.Errorf("%s: mode %04o, want 0600", path, mode)
			}
		})
	}
	if found < 20 {
		t.Errorf("got %d files with private keys, want at least 20: the test looks in the wrong place", found)
	}
	if info, err := os.Stat(c.Kubeconfig()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("kubeconfig on the host: got %v, %v, want mode 0600", info.Mode(), err)
	}
}

// noKeyLeaks searches for every private key of the cluster, and a Secret, where none may be.
func noKeyLeaks(c *kit.Cluster) {
	t := c.T
	needles := secrets(t, c)
	needles["a Secret"], needles["a Secret (base64)"] = []byte(canary), []byte(base64.StdEncoding.EncodeToString([]byte(canary)))
	places, readable := c.Exposed(func(where string, text []byte) {
		for name, needle := range needles {
			if bytes.Contains(text, needle) {
				t.Errorf("%s contains key material of %s", where, name)
			}
		}
	})
	t.Logf("searched %d places, %d of them world-readable files", places, readable)
	if places < 50 || readable < 10 {
		t.Errorf("got %d places with %d world-readable files, want 50 with 10: the test looks in the wrong place", places, readable)
	}
}

// secrets returns parts of every private key in each encoding in which it could leak. It checks that the admin key is found where it
// belongs, because otherwise the test would find nothing anywhere.
func secrets(t testing.TB, c *kit.Cluster) map[string][]byte {
	needles := map[string][]byte{}
	kit.Files(t, c.Data("etc-kubernetes", "pki"), func(path string, _ fs.FileInfo) {
		if !strings.HasSuffix(path, ".key") {
			return
		}
		name, text := filepath.Base(filepath.Dir(path))+"/"+filepath.Base(path), c.ReadFile(path)
		block, _ := pem.Decode(text)
		if block == nil { // the key of encryption at rest is plain bytes
			needles[name+" (raw)"], needles[name+" (base64)"] = text, []byte(base64.StdEncoding.EncodeToString(text))
			return
		}
		line := bytes.Split(text, []byte("\n"))[2] // the first line starts the same in all keys
		if len(line) < 32 {
			t.Fatalf("%s: second line of PEM body: got %q, want at least 32 bytes", path, line)
		}
		needles[name+" (PEM)"], needles[name+" (DER)"] = line, block.Bytes
		needles[name+" (PEM in base64)"] = []byte(base64.StdEncoding.EncodeToString(text)[:400/3*2])
	})
	if len(needles) < 40 {
		t.Fatalf("got %d parts of keys, want at least 40", len(needles))
	}
	admin := c.Read("etc-kubernetes", "admin.conf")
	if !bytes.Contains(admin, needles["pki/admin.key (PEM in base64)"]) {
		t.Fatal("the admin kubeconfig does not contain the admin key in the encoding that the test searches for")
	}
	return needles
}

// Addresses of the components in the machine's network.
const (
	apiServer         = "https://127.0.0.1:6443"
	controllerManager = "https://127.0.0.1:10257"
	scheduler         = "https://127.0.0.1:10259"
	kubelet           = "https://10.89.0.10:10250"
	etcd              = "https://10.89.0.10:2379"
	etcdPeers         = "https://10.89.0.10:2380"
)

// unauthenticated sends requests without credentials: only health checks are allowed.
func unauthenticated(c *kit.Cluster) {
	t := c.T
	for url, want := range map[string]int{
		apiServer + "/livez": 200, apiServer + "/readyz": 200, apiServer + "/healthz": 200,
		apiServer + "/": 401, apiServer + "/api": 401, apiServer + "/apis": 401, apiServer + "/version": 401, apiServer + "/metrics": 401,
		apiServer + "/openapi/v2": 401, apiServer + "/livez/etcd": 401, apiServer + "/debug/pprof/": 401,
		controllerManager + "/healthz": 200, controllerManager + "/metrics": 403, controllerManager + "/configz": 403,
		scheduler + "/healthz": 200, scheduler + "/metrics": 403, scheduler + "/configz": 403,
		kubelet + "/pods": 401, kubelet + "/metrics": 401, kubelet + "/healthz": 401, kubelet + "/configz": 401, kubelet + "/logs/": 401,
		kubelet + "/run/default/client/client": 401, kubelet + "/exec/default/client/client": 401,
	} {
		if code, body := c.HTTPS("GET", url); code != want {
			t.Errorf("%s without credentials: got %d, want %d: %.200s", url, code, want, body)
		}
	}
	for _, url := range []string{etcd + "/health", etcd + "/version", etcdPeers + "/members"} {
		if code, body := c.HTTPS("GET", url); code != 0 {
			t.Errorf("%s without credentials: got %d, want a refused connection: %.200s", url, code, body)
		}
	}
	// The same requests succeed with credentials, so the path was not the reason.
	admin := kit.Certificate("etc-kubernetes/pki/super-admin")
	for _, url := range []string{apiServer + "/metrics", controllerManager + "/metrics", scheduler + "/metrics", kubelet + "/pods"} {
		if code, body := c.HTTPS("GET", url, admin); code != 200 {
			t.Errorf("%s as administrator: got %d, want 200: %.200s", url, code, body)
		}
	}
}

func kubeletAndEtcd(c *kit.Cluster) {
	t := c.T
	for cert, want := range map[string]int{
		"etc-kubernetes/pki/kubelet-client": 0, "etc-kubernetes/pki/super-admin": 0, "etc-kubernetes/pki/front-proxy-client": 0,
		"etc-kubernetes/pki/etcd/healthcheck-client": 200,
	} {
		if code, body := c.HTTPS("GET", etcd+"/health", kit.Certificate(cert)); code != want {
			t.Errorf("etcd with certificate %s: got %d, want %d (0: refused): %s", cert, code, want, body)
		}
	}
}
