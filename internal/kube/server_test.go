// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/slipway-project/slipway/internal/bintest"
	"github.com/slipway-project/slipway/internal/ca"
	"github.com/slipway-project/slipway/internal/core/pki"
)

// server is a real kube-apiserver with its etcd on loopback.
type server struct {
	dir, bin, url string
	etcdURL       string
	api, etcd     *exec.Cmd
}

// shared is the server for all tests that do not need their own. TestMain stops it.
var shared = sync.OnceValues(func() (*server, error) {
	dir, err := os.MkdirTemp("", "slipway-kube-test-")
	if err != nil {
		return nil, err
	}
	s := &server{dir: dir}
	return s, s.start(context.Background())
})

var sharedUsed bool

func TestMain(m *testing.M) {
	if kubeconfig := os.Getenv(leaderProcess); kubeconfig != "" {
		os.Exit(leadAsProcess(kubeconfig))
	}
	code := m.Run()
	if sharedUsed {
		if s, err := shared(); s != nil {
			s.stop()
			if err != nil || code != 0 {
				fmt.Println(s.logs())
			}
			_ = os.RemoveAll(s.dir)
		}
	}
	os.Exit(code)
}

var sharedMu sync.Mutex // guards sharedUsed

func sharedServer(t *testing.T) *server {
	t.Helper()
	bintest.Dir(t, "kube", "etcd")
	sharedMu.Lock()
	sharedUsed = true
	sharedMu.Unlock()
	s, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	waitReadyz(t, s.client(t, "super-admin"))
	return s
}

// waitReadyz polls until the server is ready: readiness cannot be watched.
func waitReadyz(t *testing.T, c *Client) {
	t.Helper()
	var pace backoff
	for c.Unready(t.Context()) != "" {
		if err := pace.pause(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// ownServer starts a server for this test and does not wait until it is ready.
func ownServer(t *testing.T) *server {
	t.Helper()
	bintest.Dir(t, "kube", "etcd")
	s := &server{dir: t.TempDir()}
	t.Cleanup(func() {
		s.stop()
		if t.Failed() {
			t.Log(s.logs())
		}
	})
	if err := s.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *server) start(ctx context.Context) error {
	s.bin = os.Getenv(bintest.Variable)
	if err := s.keys(ctx); err != nil {
		return err
	}
	ports, err := freePorts(ctx, 3)
	if err != nil {
		return err
	}
	s.etcdURL, s.url = "http://127.0.0.1:"+ports[0], "https://127.0.0.1:"+ports[2]
	s.etcd, err = s.run("etcd", "--data-dir="+filepath.Join(s.dir, "etcd"), "--unsafe-no-fsync", "--log-level=error",
		"--listen-client-urls="+s.etcdURL, "--advertise-client-urls="+s.etcdURL, "--listen-peer-urls=http://127.0.0.1:"+ports[1])
	if err != nil {
		return err
	}
	return s.startAPI()
}

func (s *server) startAPI() (err error) {
	_, port, _ := strings.Cut(strings.TrimPrefix(s.url, "https://"), ":")
	s.api, err = s.run("kube", "kube-apiserver", "--etcd-servers="+s.etcdURL, "--bind-address=127.0.0.1", "--secure-port="+port,
		"--advertise-address=192.0.2.1", "--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.96.0.0/16",
		"--tls-cert-file="+s.file("apiserver.crt"), "--tls-private-key-file="+s.file("apiserver.key"), "--client-ca-file="+s.file("ca.crt"),
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+s.file("sa.pub"),
		"--service-account-signing-key-file="+s.file("sa.key"), "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction")
	return err
}

func (s *server) file(name string) string { return filepath.Join(s.dir, name) }

func (s *server) run(name string, args ...string) (*exec.Cmd, error) {
	cmd := exec.Command(filepath.Join(s.bin, name), args...) // outlives the test that starts it
	log, err := os.OpenFile(s.file(name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd, cmd.Start()
}

func (s *server) stop() {
	for _, cmd := range []*exec.Cmd{s.api, s.etcd} {
		kill(cmd)
	}
}

func kill(cmd *exec.Cmd) {
	if cmd != nil && cmd.Process != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

func (s *server) logs() string {
	data, _ := os.ReadFile(s.file("kube.log"))
	return "last lines of kube-apiserver:\n" + string(data[max(0, len(data)-3000):])
}

// keys creates the certificates with package ca, so that the API server tests them too.
func (s *server) keys(ctx context.Context) error {
	root := pki.Want{Name: "ca", Kind: pki.CA, CommonName: "test", Lifetime: time.Hour, CertPath: s.file("ca.crt"), KeyPath: s.file("ca.key")}
	serving := s.leaf("apiserver", pki.ServerAuth, "kube-apiserver")
	serving.Addresses = []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	all := []pki.Want{
		root, serving,
		{Name: "sa", Kind: pki.KeyPair, CertPath: s.file("sa.pub"), KeyPath: s.file("sa.key")},
		s.leaf("super-admin", pki.ClientAuth, "super-admin", "system:masters"),
		s.leaf("admin", pki.ClientAuth, "kubernetes-admin", pki.AdminGroup),
		s.leaf("control", pki.ClientAuth, "slipway-control", pki.ControlGroup),
		s.leaf("node-a", pki.ClientAuth, "system:node:a", "system:nodes"),
		s.leaf("node-b", pki.ClientAuth, "system:node:b", "system:nodes"),
	}
	var local ca.Local
	for _, w := range all {
		if err := local.Ensure(ctx, w); err != nil {
			return err
		}
	}
	return nil
}

func (s *server) leaf(name string, usage pki.Usage, cn string, orgs ...string) pki.Want {
	return pki.Want{
		Name: name, Kind: pki.Leaf, Signer: "ca", CommonName: cn, Organizations: orgs, Usages: []pki.Usage{usage}, Lifetime: time.Hour,
		CertPath: s.file(name + ".crt"), KeyPath: s.file(name + ".key"), SignerCert: s.file("ca.crt"), SignerKey: s.file("ca.key"),
	}
}

// kubeconfig returns the path of a kubeconfig for one of the identities from keys.
func (s *server) kubeconfig(t *testing.T, who string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), who+".conf")
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"x","contexts":[{"name":"x","context":{"cluster":"x","user":"x"}}],
"clusters":[{"name":"x","cluster":{"server":%q,"certificate-authority":%q}}],"users":[{"name":"x","user":{"client-certificate":%q,"client-key":%q}}]}`,
		s.url, s.file("ca.crt"), s.file(who+".crt"), s.file(who+".key"))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func (s *server) client(t *testing.T, who string) *Client {
	t.Helper()
	c, err := Connect(s.kubeconfig(t, who), slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func freePorts(ctx context.Context, n int) (ports []string, err error) {
	for range n {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		_, port, _ := net.SplitHostPort(l.Addr().String())
		ports = append(ports, port)
	}
	return ports, nil
}

func podSpec() map[string]any {
	return map[string]any{"containers": []any{map[string]any{"name": "main", "image": "example.test/x:1"}}, "automountServiceAccountToken": false}
}

func create(t *testing.T, c *Client, r schema.GroupVersionResource, ns string, o map[string]any) {
	t.Helper()
	if _, err := c.dyn.Resource(r).Namespace(ns).Create(t.Context(), &unstructured.Unstructured{Object: o}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func setStatus(t *testing.T, c *Client, r schema.GroupVersionResource, ns, name string, status map[string]any) {
	t.Helper()
	in := c.dyn.Resource(r).Namespace(ns)
	o, err := in.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	o.Object["status"] = status
	if _, err := in.UpdateStatus(t.Context(), o, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// waiter is a function that reports reasons while it runs in the background.
type waiter struct {
	t       *testing.T
	reasons chan string
	ended   chan error
}

func startWait(t *testing.T, run func(context.Context, func(string)) error) waiter {
	w := waiter{t, make(chan string, 100), make(chan error, 1)}
	go func() { w.ended <- run(t.Context(), func(why string) { w.reasons <- why }) }()
	return w
}

// until waits for a reason and skips others: which states are seen between two others depends on timing.
func (w waiter) until(want string) {
	w.t.Helper()
	var others []string
	for {
		select {
		case got := <-w.reasons:
			if got == want {
				return
			}
			others = append(others, got)
		case err := <-w.ended:
			w.t.Fatalf("the function returned %v before it reported %q", err, want)
		case <-w.t.Context().Done():
			w.t.Fatalf("got the reasons %q, want %q", others, want)
		}
	}
}
