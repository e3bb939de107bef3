// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/bundle"
	"github.com/slipway-project/slipway/internal/certtest"
	"github.com/slipway-project/slipway/internal/clusterdir"
	coremachine "github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/planner"
	"github.com/slipway-project/slipway/internal/node/initserver"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/report"
	"github.com/slipway-project/slipway/internal/rpc"
)

const somePin = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// bareMachine waits for its initializer, with the real init service and a fake machine behind it.
type bareMachine struct {
	address, pin, secret string
	facts                coremachine.Facts
	outcome              chan error // the outcome of the next request

	mu      sync.Mutex // guards the field below
	tickets []plan.Ticket
}

func (m *bareMachine) Facts() coremachine.Facts { return m.facts }

func (m *bareMachine) Install(_ context.Context, t plan.Ticket) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tickets = append(m.tickets, t)
	return nil
}

func (m *bareMachine) Established(ctx context.Context, report func(initserver.Event)) (initserver.Result, error) {
	report(initserver.Event{Item: "unit/etcd", ItemPhase: "ready"})
	select {
	case err := <-m.outcome:
		return initserver.Result{Cluster: "0123", Node: "dev-main-0", Kubeconfig: []byte("clusters:\n- cluster:\n    server: https://127.0.0.1:6443\n")}, err
	case <-ctx.Done():
		return initserver.Result{}, ctx.Err()
	}
}

func (m *bareMachine) Wipe(context.Context) error { return nil }

func (m *bareMachine) ticket(t *testing.T, n int) plan.Ticket {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.tickets) != n {
		t.Fatalf("the machine got %d tickets, want %d", len(m.tickets), n)
	}
	return m.tickets[n-1]
}

func newBareMachine(t *testing.T) *bareMachine {
	t.Helper()
	dir := t.TempDir()
	key := certtest.Key(t)
	pin, err := pin.OfKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	secret, hash := initserver.NewSecret()
	m := &bareMachine{
		pin: string(pin), secret: secret, outcome: make(chan error, 1),
		facts: coremachine.Facts{Address: netip.MustParseAddr("127.0.0.1"), OOMScoreAdj: true},
	}
	if err := os.WriteFile(filepath.Join(dir, "secret"), hash, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := lock.Open(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	cert, err := rpc.SelfSigned(key, "slipway-init", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s, err := initserver.New(initserver.Config{
		Lock: l, Machine: m, Slipway: "v0.0.0-test", SecretFile: filepath.Join(dir, "secret"), RequestFile: filepath.Join(dir, "request"),
		Certificate: func() (*tls.Certificate, error) { return cert, nil }, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m.address = ln.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Run(ctx, ln)
	}()
	t.Cleanup(func() { stop(); <-done })
	return m
}

func (m *bareMachine) options() InitOptions {
	return InitOptions{Source: clusterdir.Source{Name: "dev"}, Server: m.address, Pin: m.pin, Secret: m.secret, Timeout: 20 * time.Second}
}

func initOf(ctx context.Context, dir clusterdir.Dir, o InitOptions) (Initialized, error) {
	return initWith(ctx, dir, o, func(_ context.Context, _ clusterdir.Dir, c clusterdir.Cluster) (planner.Components, error) {
		return bundle.Placeholders(c.Release), nil
	})
}

func TestInit(t *testing.T) {
	t.Parallel()
	m := newBareMachine(t)
	dir := clusterdir.Dir{Root: t.TempDir()}
	m.outcome <- nil
	var heard []string
	o := m.options()
	o.Report = func(e report.Event) { heard = append(heard, e.Item+e.Text) }
	done, err := initOf(t.Context(), dir, o)
	if err != nil {
		t.Fatal(err)
	}
	if !done.Changed || done.Cluster != "0123" || done.Machine != m.pin || done.Server != "https://127.0.0.1:6443" || done.Node != "dev-main-0" {
		t.Errorf("result %+v", done)
	}
	info, err := os.Stat(done.Kubeconfig)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("kubeconfig: %v, %v", info, err)
	}
	if !strings.Contains(strings.Join(heard, " "), "unit/etcd") {
		t.Errorf("progress: %q", heard)
	}
	ticket := m.ticket(t, 1)
	if ticket.Plan.Node != "dev-main-0" || len(ticket.Control) == 0 || len(ticket.Files) == 0 || !strings.Contains(string(ticket.Control), m.pin) {
		t.Errorf("ticket for %s with %d files, want a control document with the key of the machine", ticket.Plan.Node, len(ticket.Files))
	}
	again, err := initOf(t.Context(), dir, m.options())
	if done.Changed = false; err != nil || again != done {
		t.Errorf("the second time: %+v, %v", again, err)
	}
	m.ticket(t, 1)
	if text, err := os.ReadFile(filepath.Join(dir.Root, "remote", "dev", "init.json")); err != nil || strings.Contains(string(text), m.secret) {
		t.Errorf("the stored request has the secret: %v", err)
	}
	if names, err := dir.Clusters(); err != nil || len(names) != 0 {
		t.Errorf("clusters of this host: got %v, %v, want none", names, err)
	}
}

// After an interruption while the machine works, the same call resumes the request.
func TestInitResumes(t *testing.T) {
	t.Parallel()
	m := newBareMachine(t)
	dir := clusterdir.Dir{Root: t.TempDir()}
	ctx, stop := context.WithCancel(t.Context())
	o := m.options()
	o.Report = func(e report.Event) {
		if e.Item == "unit/etcd" {
			stop()
		}
	}
	if _, err := initOf(ctx, dir, o); err == nil {
		t.Fatal("an interrupted init reports success")
	}
	m.outcome <- nil
	done, err := initOf(t.Context(), dir, m.options())
	if err != nil || !done.Changed || done.Cluster != "0123" {
		t.Errorf("resumed: got %+v, %v, want a cluster", done, err)
	}
	m.ticket(t, 1)
}

// A stored request that never arrived is sent now, as the same request.
func TestInitNeverArrived(t *testing.T) {
	t.Parallel()
	m := newBareMachine(t)
	dir := clusterdir.Dir{Root: t.TempDir()}
	o := m.options()
	r := &remoteInit{o: o, dir: dir}
	if err := r.check(); err != nil {
		t.Fatal(err)
	}
	r.req = remoteRequest{ID: "init-0123456789", Address: m.address, Pin: m.pin, Node: "dev-main-0"}
	if err := r.save(); err != nil {
		t.Fatal(err)
	}
	m.outcome <- nil
	if done, err := initOf(t.Context(), dir, o); err != nil || !done.Changed {
		t.Errorf("%+v, %v", done, err)
	}
	m.ticket(t, 1)
}

// After a failure the machine is free, and the next call is a new request.
func TestInitFails(t *testing.T) {
	t.Parallel()
	m := newBareMachine(t)
	dir := clusterdir.Dir{Root: t.TempDir()}
	m.outcome <- errors.New("disk is full")
	if _, err := initOf(t.Context(), dir, m.options()); err == nil || !strings.Contains(err.Error(), "disk is full") {
		t.Fatalf("got %v", err)
	}
	m.outcome <- nil
	if done, err := initOf(t.Context(), dir, m.options()); err != nil || done.Cluster != "0123" {
		t.Errorf("the next try: %+v, %v", done, err)
	}
	m.ticket(t, 2)
}

func TestInitRefuses(t *testing.T) {
	t.Parallel()
	m := newBareMachine(t)
	for name, test := range map[string]struct {
		change func(o *InitOptions)
		want   string
	}{
		"another key":                    {func(o *InitOptions) { o.Pin = somePin }, "a different machine"},
		"another secret":                 {func(o *InitOptions) { o.Secret = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" }, "a different init secret"},
		"a name":                         {func(o *InitOptions) { o.Server = "machine.example" }, "use an address"},
		"no pin":                         {func(o *InitOptions) { o.Pin = "" }, "--pin"},
		"a node that is not in the spec": {func(o *InitOptions) { o.Node = "dev-main-7" }, "no control plane \"dev-main-7\""},
		"no such spec":                   {func(o *InitOptions) { o.Source.File = "testdata/none.yaml" }, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			o := m.options()
			o.Timeout = 5 * time.Second
			test.change(&o)
			dir := clusterdir.Dir{Root: t.TempDir()}
			if _, err := initOf(t.Context(), dir, o); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			} else if strings.Contains(err.Error(), m.secret) {
				t.Errorf("the error has the secret: %v", err)
			}
			if _, err := os.Stat(filepath.Join(dir.Root, "remote")); err == nil {
				t.Error("an invalid request was stored")
			}
		})
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.tickets) != 0 {
		t.Errorf("the machine got %d tickets", len(m.tickets))
	}
}

// One name is one cluster: it is not created on two machines.
func TestInitTwoMachines(t *testing.T) {
	t.Parallel()
	a, b := newBareMachine(t), newBareMachine(t)
	dir := clusterdir.Dir{Root: t.TempDir()}
	a.outcome <- nil
	if _, err := initOf(t.Context(), dir, a.options()); err != nil {
		t.Fatal(err)
	}
	if _, err := initOf(t.Context(), dir, b.options()); err == nil || !strings.Contains(err.Error(), "another --name") {
		t.Errorf("got %v", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.tickets) != 0 {
		t.Error("the second machine got a ticket, want none")
	}
}

// Two commands at the same moment create one cluster, too.
func TestInitTwoMachinesAtOnce(t *testing.T) {
	t.Parallel()
	for range 10 {
		dir := clusterdir.Dir{Root: t.TempDir()}
		machines := []*bareMachine{newBareMachine(t), newBareMachine(t)}
		var made [2]error
		var work sync.WaitGroup
		for i, m := range machines {
			m.outcome <- nil
			work.Go(func() { _, made[i] = initOf(t.Context(), dir, m.options()) })
		}
		work.Wait()
		if (made[0] == nil) == (made[1] == nil) {
			t.Errorf("want exactly one cluster: %v, %v", made[0], made[1])
		}
		for i, m := range machines {
			m.mu.Lock()
			if got := len(m.tickets); got > 0 != (made[i] == nil) {
				t.Errorf("machine %d got %d tickets, and its init ended with %v", i, got, made[i])
			}
			m.mu.Unlock()
		}
	}
}
