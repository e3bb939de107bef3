// SPDX-License-Identifier: Apache-2.0

package planner_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/bintest"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/plan"
)

// rereads reports whether a running component rereads the file that a flag names, within a minute or at the next handshake.
// known is false for a flag that was not examined. A change of a file that is not reread must restart the component, and a
// change of one that is reread must not. Observed with Kubernetes 1.36 and etcd 3.6 (docs/adr/0027).
func rereads(component, flag string) (again, known bool) {
	switch component {
	case "etcd":
		return reread(flag,
			[]string{"cert-file", "key-file", "peer-cert-file", "peer-key-file"}, // for each handshake
			[]string{"trusted-ca-file", "peer-trusted-ca-file"})
	case "kube-apiserver":
		return reread(flag,
			[]string{
				"tls-cert-file", "tls-private-key-file", "client-ca-file", "requestheader-client-ca-file", "authentication-config",
				"proxy-client-cert-file", "proxy-client-key-file", "kubelet-client-certificate", "kubelet-client-key", "etcd-certfile", "etcd-keyfile",
			},
			[]string{
				"etcd-cafile", "kubelet-certificate-authority", "service-account-key-file", "service-account-signing-key-file", "audit-policy-file",
				"encryption-provider-config", // unless encryption-provider-config-automatic-reload is set
			})
	case "kube-controller-manager", "kube-scheduler":
		return reread(flag,
			[]string{
				"tls-cert-file", "tls-private-key-file", "client-ca-file", "requestheader-client-ca-file",
				"cluster-signing-kubelet-client-cert-file", "cluster-signing-kubelet-client-key-file",
				"cluster-signing-kubelet-serving-cert-file", "cluster-signing-kubelet-serving-key-file",
				"cluster-signing-kube-apiserver-client-cert-file", "cluster-signing-kube-apiserver-client-key-file",
			},
			[]string{
				"config", "root-ca-file", "service-account-private-key-file",
				// The credentials that a kubeconfig names by path are read again; the file itself and the CA that it names are not.
				"kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig",
			})
	case "kubelet", "kube-proxy", "containerd":
		return reread(flag, nil, []string{"config", "kubeconfig"})
	}
	return false, false
}

func reread(flag string, again, never []string) (isAgain, known bool) {
	isAgain = slices.Contains(again, flag)
	return isAgain, isAgain || slices.Contains(never, flag)
}

// fileOf lists the paths of an item that a flag may name.
func fileOf(it plan.Item) []string {
	switch it := it.(type) {
	case plan.File:
		return []string{it.Path}
	case plan.Kubeconfig:
		return []string{it.Path}
	case plan.Cert:
		return []string{it.Want.CertPath, it.Want.KeyPath}
	case plan.Dir, plan.Artifact, plan.Mount, plan.Unit, plan.StaticPod, plan.Precondition:
	}
	return nil
}

// A change of a file that a component rereads restarts nothing, and a change of any other file restarts it.
func TestInputsAreWhatIsNotReread(t *testing.T) {
	t.Parallel()
	p := planOf(t, completed(t, "apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata: {name: dev}\nspec: {pools: [{name: main, roles: [control-plane, worker], count: 3}]}\n"), "dev-main-0")
	made := map[string]plan.Ref{}
	leaves := map[plan.Ref]bool{}
	for _, e := range p.Entries {
		for _, path := range fileOf(e.Item) {
			made[path] = e.Ref
		}
		if c, ok := e.Item.(plan.Cert); ok && c.Want.Kind == pki.Leaf {
			leaves[e.Ref] = true
		}
	}
	looked := 0
	for _, e := range p.Entries {
		u, ok := e.Item.(plan.Unit)
		if !ok || u.Oneshot {
			continue
		}
		for _, in := range u.Inputs {
			if leaves[in] {
				t.Errorf("%s restarts when %s is renewed", u.Name, in)
			}
		}
		for _, arg := range u.Args[1:] {
			flag, value, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
			ref, isFile := made[value]
			if !isFile {
				continue
			}
			looked++
			again, known := rereads(u.Name, flag)
			if !known {
				t.Errorf("%s --%s: not known whether it rereads %s", u.Name, flag, value)
			}
			if is := slices.Contains(u.Inputs, ref); !is && !again {
				t.Errorf("%s --%s is not reread, and %s is not an input", u.Name, flag, ref)
			}
		}
	}
	if looked < 40 {
		t.Errorf("found %d files in arguments: the test looks at the wrong thing", looked)
	}
}

// A real API client rereads the credentials that its kubeconfig names by path when they are replaced.
func TestKubeconfigCredentialsAreReread(t *testing.T) {
	t.Parallel()
	program := filepath.Join(bintest.Dir(t, "kube"), "kube")
	dir := t.TempDir()
	seen := make(chan int64, 1000)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case seen <- r.TLS.PeerCertificates[0].SerialNumber.Int64():
		default:
		}
		w.Header().Set("Connection", "close") // the next question is another handshake
		http.Error(w, "not now", http.StatusInternalServerError)
	}))
	server.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(server.Close)

	issue(t, dir, 1)
	conf := filepath.Join(dir, "scheduler.conf")
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
"clusters": [{"name": "c", "cluster": {"server": %q, "insecure-skip-tls-verify": true}}],
"users": [{"name": "u", "user": {"client-certificate": %q, "client-key": %q}}]}`, server.URL, dir+"/tls.crt", dir+"/tls.key")
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "--kubeconfig="+conf, "--leader-elect=false", "--secure-port=0")
	cmd.Args[0] = "kube-scheduler" // by which name the program is called decides which one it is
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })

	awaitSerial(t, seen, 1)
	issue(t, dir, 2)
	awaitSerial(t, seen, 2)
	if again, known := rereads("kube-scheduler", "kubeconfig"); again || !known {
		t.Error("the kubeconfig itself is not read again")
	}
}

func awaitSerial(t *testing.T, seen <-chan int64, want int64) {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		select {
		case got := <-seen:
			if got == want {
				return
			}
		case <-limit:
			t.Fatalf("no handshake with certificate %d", want)
		}
	}
}

// issue exchanges the pair as the agent does: by rename.
func issue(t *testing.T, dir string, serial int64) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{"tls.key": {Type: "PRIVATE KEY", Bytes: secret}, "tls.crt": {Type: "CERTIFICATE", Bytes: cert}} {
		path := filepath.Join(dir, file)
		if err := os.WriteFile(path+".new", pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
}
