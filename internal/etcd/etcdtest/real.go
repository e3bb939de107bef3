// SPDX-License-Identifier: Apache-2.0

package etcdtest

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/slipway-project/slipway/internal/bintest"
	"github.com/slipway-project/slipway/internal/certtest"
	"github.com/slipway-project/slipway/internal/etcd"
)

// real runs one etcd process for each node, on addresses of a free loopback network.
type real struct {
	program, dir, network string
	pki                   pki

	mu    sync.Mutex // guards procs
	procs map[string]*proc
}

type proc struct {
	cmd   *exec.Cmd
	ended chan struct{}
	log   bytes.Buffer // read only after ended
}

// Real returns a lab of real etcd processes, which end with the test. It skips the test if the program is missing.
func Real(t testing.TB) Lab {
	t.Helper()
	program := filepath.Join(bintest.Dir(t, "etcd"), "etcd")
	r := &real{program: program, dir: t.TempDir(), network: network(t), procs: map[string]*proc{}}
	r.pki = newPKI(t, r.dir, r.Address)
	t.Cleanup(func() {
		for node := range r.procs {
			r.Kill(t, node)
		}
	})
	return r
}

// network returns a free /24 of the loopback network: several test runs may share the machine.
func network(t testing.TB) string {
	t.Helper()
	for range 50 {
		n := fmt.Sprintf("127.%d.%d", 20+rand.IntN(200), 1+rand.IntN(250))
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", n+".1:2380")
		if err != nil {
			continue
		}
		_ = l.Close()
		return n
	}
	t.Fatal("no free loopback network")
	return ""
}

func (r *real) Address(node string) string { return fmt.Sprintf("%s.%d", r.network, node[0]-'a'+1) }
func (r *real) Peer(node string) string    { return "https://" + r.Address(node) + ":2380" }
func (r *real) client(node string) string  { return "https://" + r.Address(node) + ":2379" }

func (r *real) Form(t testing.TB, node string) {
	t.Helper()
	permit := fmt.Appendf(nil, "ETCD_INITIAL_CLUSTER=%s=%s\nETCD_INITIAL_CLUSTER_STATE=new\n", node, r.Peer(node))
	if err := r.Start(t, node, permit, false); err != nil {
		t.Fatal(err)
	}
}

func (r *real) Start(t testing.TB, node string, permit []byte, wipe bool) error {
	t.Helper()
	data := filepath.Join(r.dir, node)
	if wipe {
		if err := os.RemoveAll(data); err != nil {
			return err
		}
	}
	p := &proc{ended: make(chan struct{})}
	p.cmd = exec.Command( //nolint:noctx // Kill ends it
		r.program, "--name="+node, "--data-dir="+data, "--unsafe-no-fsync", "--log-level=warn", "--log-outputs=stderr",
		"--listen-client-urls="+r.client(node), "--advertise-client-urls="+r.client(node),
		"--listen-peer-urls="+r.Peer(node), "--initial-advertise-peer-urls="+r.Peer(node),
		"--client-cert-auth", "--trusted-ca-file="+r.pki.ca, "--cert-file="+r.pki.cert, "--key-file="+r.pki.key,
		"--peer-client-cert-auth", "--peer-trusted-ca-file="+r.pki.ca, "--peer-cert-file="+r.pki.cert, "--peer-key-file="+r.pki.key,
		"--strict-reconfig-check", "--feature-gates=InitialCorruptCheck=true", "--initial-cluster-token=test",
	)
	p.cmd.Env = append(os.Environ(), strings.Fields(string(permit))...)
	p.cmd.Stderr = &p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	r.mu.Lock()
	r.procs[node] = p
	r.mu.Unlock()
	return r.ready(t, node, p)
}

// ready waits until the member responds or its process ends.
func (r *real) ready(t testing.TB, node string, p *proc) error {
	t.Helper()
	c := r.open(t, node)
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		limited, done := context.WithTimeout(ctx, time.Second)
		_, err := c.Status(limited, r.client(node))
		done()
		if err == nil {
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("etcd of %s exited: %s", node, tail(p.log.String()))
		case <-time.After(20 * time.Millisecond):
		}
	}
	return fmt.Errorf("etcd of %s does not respond", node)
}

func tail(log string) string {
	lines := strings.Split(strings.TrimSpace(log), "\n")
	return strings.Join(lines[max(0, len(lines)-3):], " | ")
}

func (r *real) Kill(t testing.TB, node string) {
	t.Helper()
	r.mu.Lock()
	p := r.procs[node]
	r.mu.Unlock()
	if p == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// Client connects as a control plane does: to its own member.
func (r *real) Client(t testing.TB, node string) Client {
	t.Helper()
	c, err := etcd.Connect(etcd.Config{Endpoints: []string{r.client(node)}, CA: r.pki.ca, Cert: r.pki.cert, Key: r.pki.key})
	if err != nil {
		t.Fatal(err)
	}
	keys := r.open(t, node)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		_ = keys.Close()
	})
	return &clientWithKeys{c, keys}
}

func (r *real) open(t testing.TB, node string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{r.client(node)}, TLS: r.pki.tls, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// clientWithKeys adds the reading and writing of keys.
type clientWithKeys struct {
	*etcd.Client
	keys *clientv3.Client
}

// keyTimeout is short because etcd lets a write that meets an election wait until its client gives up.
const keyTimeout = time.Second

func (b *clientWithKeys) Put(ctx context.Context, key, value string) error {
	ctx, cancel := context.WithTimeout(ctx, keyTimeout)
	defer cancel()
	_, err := b.keys.Put(ctx, key, value)
	return err
}

func (b *clientWithKeys) Get(ctx context.Context, key string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, keyTimeout)
	defer cancel()
	answer, err := b.keys.Get(ctx, key)
	if err != nil || len(answer.Kvs) == 0 {
		return "", err
	}
	return string(answer.Kvs[0].Value), nil
}

var _ Client = (*clientWithKeys)(nil)

// pki is a CA and one certificate, valid for all nodes of a lab as server, peer and client.
type pki struct {
	ca, cert, key string
	tls           *tls.Config
}

func newPKI(t testing.TB, dir string, address func(node string) string) pki {
	t.Helper()
	ca := certtest.NewAuthority(t, "etcd-ca")
	root, caKey := ca.Cert, ca.Key
	leafKey := certtest.Key(t)
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "etcd"}, NotBefore: root.NotBefore, NotAfter: root.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	leaf.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)} // etcd checks the source address of a peer against its certificate
	for c := 'a'; c <= 'j'; c++ {
		leaf.IPAddresses = append(leaf.IPAddresses, net.ParseIP(address(string(c))))
	}
	leafDER := certtest.Sign(t, leaf, root, leafKey.Public(), caKey).Raw
	keyDER, err := x509.MarshalECPrivateKey(leafKey)
	if err != nil {
		t.Fatal(err)
	}
	p := pki{
		ca:   write(t, dir, "ca.crt", "CERTIFICATE", root.Raw),
		cert: write(t, dir, "leaf.crt", "CERTIFICATE", leafDER),
		key:  write(t, dir, "leaf.key", "EC PRIVATE KEY", keyDER),
	}
	roots := x509.NewCertPool()
	roots.AddCert(root)
	p.tls = &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: roots,
		Certificates: []tls.Certificate{{Certificate: [][]byte{leafDER}, PrivateKey: leafKey}},
	}
	return p
}

func write(t testing.TB, dir, name, kind string, der []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
