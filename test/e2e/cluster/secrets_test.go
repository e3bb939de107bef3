// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"bytes"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
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

func secretInEtcd(t *testing.T, c *kit.Cluster) {
	c.Kubectl("create", "configmap", "canary", "--from-literal=value="+canary)
	c.Kubectl("create", "secret", "generic", "canary", "--from-literal=value="+canary)
	if open := c.Exec(etcdctl + "get --print-value-only /registry/configmaps/default/canary"); !strings.Contains(open, canary) {
		t.Fatalf("a ConfigMap is not readable in etcd, so this test looks at the wrong place: %q", open)
	}
	raw := c.Exec(etcdctl + "get --print-value-only /registry/secrets/default/canary")
	if !strings.HasPrefix(raw, "k8s:enc:secretbox:v1:") {
		t.Errorf("the Secret in etcd begins with %.30q, want k8s:enc:secretbox:v1:", raw)
	}
	for _, form := range []string{canary, base64.StdEncoding.EncodeToString([]byte(canary))} {
		if strings.Contains(raw, form) {
			t.Errorf("the Secret is readable in etcd as %q", form)
		}
	}
}

func keyFiles(t *testing.T, c *kit.Cluster) {
	found := 0
	for _, folder := range []string{c.Data("etc-kubernetes"), c.Data("kubelet", "pki")} {
		kit.Files(t, folder, func(path string, info fs.FileInfo) {
			text, err := os.ReadFile(path)
			if errors.Is(err, fs.ErrNotExist) {
				return // it was on its way to another name
			}
			if err != nil {
				t.Fatal(err)
			}
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
		t.Errorf("only %d files with private keys: the test looks at the wrong place", found)
	}
	if info, err := os.Stat(c.Kubeconfig()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("kubeconfig of the host: %v, %v, want mode 0600", info.Mode(), err)
	}
}

// noKeyLeaks looks for every private key of the cluster where none belongs.
func noKeyLeaks(t *testing.T, c *kit.Cluster) {
	needles := secrets(t, c)
	needles["a Secret"], needles["a Secret (base64)"] = []byte(canary), []byte(base64.StdEncoding.EncodeToString([]byte(canary)))
	places, open := 0, 0
	look := func(where string, text []byte) {
		places++
		for name, needle := range needles {
			if bytes.Contains(text, needle) {
				t.Errorf("%s holds key material of %s", where, name)
			}
		}
	}
	for _, folder := range []string{c.Data("log"), c.Data("slipway", "plan"), filepath.Join(kit.Root, "clusters", c.Name, "proxy")} {
		kit.Files(t, folder, func(path string, _ fs.FileInfo) { look(path, read(t, path)) })
	}
	look("console", read(t, filepath.Join(c.Folder(), "console.log")))
	for _, p := range c.Processes() {
		for _, file := range []string{"cmdline", "environ"} {
			if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.PID, file)); err == nil { // it may have ended
				look(fmt.Sprintf("%s of %s", file, p.Exe), text)
			}
		}
	}
	for _, folder := range []string{filepath.Join(c.Folder(), "data"), filepath.Join(c.Folder(), "upper")} {
		kit.OpenFiles(t, folder, func(path string, info fs.FileInfo) {
			program := info.Mode()&0o111 != 0 || strings.HasSuffix(path, ".tar")
			if info.Mode()&0o004 != 0 && !program {
				open++
				look("world-readable "+path, read(t, path))
			}
		})
	}
	t.Logf("%d places, of them %d world-readable files", places, open)
	if places < 50 || open < 10 {
		t.Error("the test looks at the wrong place")
	}
}

// secrets are pieces of every private key, in each form in which it could leak. Each is found in its own file, or the test
// would find nothing anywhere.
func secrets(t *testing.T, c *kit.Cluster) map[string][]byte {
	needles := map[string][]byte{}
	kit.Files(t, c.Data("etc-kubernetes", "pki"), func(path string, _ fs.FileInfo) {
		if !strings.HasSuffix(path, ".key") {
			return
		}
		name, text := filepath.Base(filepath.Dir(path))+"/"+filepath.Base(path), read(t, path)
		block, _ := pem.Decode(text)
		if block == nil { // plain bytes: the key of encryption at rest
			needles[name+" (raw)"], needles[name+" (base64)"] = text, []byte(base64.StdEncoding.EncodeToString(text))
			return
		}
		line := bytes.Split(text, []byte("\n"))[2] // the first one begins alike in all keys
		if len(line) < 32 {
			t.Fatalf("%s: second line of its body: %q", path, line)
		}
		needles[name+" (PEM)"], needles[name+" (DER)"] = line, block.Bytes
		needles[name+" (PEM in base64)"] = []byte(base64.StdEncoding.EncodeToString(text)[:400/3*2])
	})
	if len(needles) < 40 {
		t.Fatalf("only %d pieces of keys", len(needles))
	}
	admin := c.Read("etc-kubernetes", "admin.conf")
	if !bytes.Contains(admin, needles["pki/admin.key (PEM in base64)"]) {
		t.Fatal("the admin's kubeconfig does not hold the admin's key in the form that the test looks for")
	}
	return needles
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) { // rotated away since
		t.Fatal(err)
	}
	return text
}

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
