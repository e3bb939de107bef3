// SPDX-License-Identifier: Apache-2.0

package balancer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/slipway-project/slipway/internal/certtest"
	"github.com/slipway-project/slipway/internal/core/roster"
	"github.com/slipway-project/slipway/internal/durable"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// api is an API server that answers with its name and its readiness.
type api struct {
	name  string
	addr  netip.AddrPort
	ready atomic.Bool
	srv   *http.Server
	mu    sync.Mutex // guards conns
	conns map[net.Conn]struct{}
}

func newAPI(t *testing.T, name string, cert *tls.Certificate) *api {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	a := &api{name: name, addr: netip.MustParseAddrPort(ln.Addr().String()), conns: map[net.Conn]struct{}{}}
	a.ready.Store(true)
	a.srv = &http.Server{
		ReadHeaderTimeout: time.Minute, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{*cert}, MinVersion: tls.VersionTLS12},
		ConnState: func(c net.Conn, s http.ConnState) {
			a.mu.Lock()
			defer a.mu.Unlock()
			if a.conns[c] = struct{}{}; s == http.StateClosed {
				delete(a.conns, c)
			}
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/readyz" && !a.ready.Load() {
				http.Error(w, "not now", http.StatusInternalServerError)
				return
			}
			fmt.Fprint(w, a.name)
		}),
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = a.srv.ServeTLS(ln, "", "") }()
	t.Cleanup(func() { a.kill(); <-done })
	return a
}

// kill closes all connections at once, as after kill -9.
func (a *api) kill() { _ = a.srv.Close() }

// cluster consists of two CAs, servers, a roster file and a balancer.
type cluster struct {
	dir           string
	joinCA, podCA certtest.Authority
	servers       []*api
	front         string
	client        *http.Client
	transport     *http.Transport
}

func newCluster(t *testing.T, servers int) *cluster {
	t.Helper()
	c := &cluster{dir: t.TempDir(), joinCA: certtest.NewAuthority(t, "join CA"), podCA: certtest.NewAuthority(t, "CA")}
	must(t, os.WriteFile(filepath.Join(c.dir, "join-ca.crt"), c.joinCA.PEM(), 0o600), os.WriteFile(filepath.Join(c.dir, "ca.crt"), c.podCA.PEM(), 0o600))
	for i := range servers {
		c.servers = append(c.servers, newAPI(t, fmt.Sprint(i), c.podCA.Server(t, "kubernetes")))
	}
	return c
}

func (c *cluster) roster(servers ...*api) roster.Roster {
	r := roster.Roster{Cluster: c.joinCA.ClusterID(), Generation: 1}
	for _, s := range servers {
		r.API, r.Join = append(r.API, s.addr), append(r.Join, s.addr)
	}
	return r
}

func (c *cluster) publish(t *testing.T, generation uint64, by certtest.Authority, servers ...*api) {
	t.Helper()
	r := c.roster(servers...)
	r.Generation = generation
	must(t, durable.WriteFile(filepath.Join(c.dir, "roster.json"), 0o600, by.Roster(t, r)))
}

// start runs the balancer with the default timing, and returns when clients can connect.
func (c *cluster) start(t *testing.T, dial func(ctx context.Context, network, addr string) (net.Conn, error)) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	c.front = ln.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	up, done := make(chan struct{}), make(chan error, 1)
	conf := Config{
		Roster: filepath.Join(c.dir, "roster.json"), JoinCA: filepath.Join(c.dir, "join-ca.crt"), ClusterCA: filepath.Join(c.dir, "ca.crt"),
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Listener: ln, Dial: dial, Ready: func() error { close(up); return nil },
	}
	go func() { done <- Run(ctx, conf) }()
	<-up
	roots := x509.NewCertPool()
	roots.AddCert(c.podCA.Cert)
	c.transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "kubernetes", MinVersion: tls.VersionTLS12}}
	c.client = &http.Client{Transport: c.transport, Timeout: 10 * time.Second}
	t.Cleanup(func() {
		c.transport.CloseIdleConnections()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// ask returns the name of the server that answers. Like kubelet, the client keeps its connection.
func (c *cluster) ask(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+c.front+"/who", nil)
	if err != nil {
		return "", err
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(resp.Body)
	return string(text), errors.Join(err, resp.Body.Close())
}

func (c *cluster) mustAsk(t *testing.T) string {
	t.Helper()
	name, err := c.ask(t.Context())
	must(t, err)
	return name
}

// await polls done for at most limit.
func await(t *testing.T, what string, limit time.Duration, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			t.Fatalf("timeout after %s: %s", limit, what)
		case <-tick.C:
		}
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}
