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
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/bintest"
)

// A real client of the API takes the credentials that its kubeconfig names by path anew when they are exchanged.
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
