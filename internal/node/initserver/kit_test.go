// SPDX-License-Identifier: Apache-2.0

package initserver

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/slipway-project/slipway/internal/certtest"
	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/initclient"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/rpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	idA = "request-a"
	idB = "request-b"
)

var errBroken = errors.New("broken on purpose")

// rig runs one agent after another on one machine. After a crash, the next agent runs on a copy of the directory.
type rig struct {
	t      *testing.T
	secret string
	key    *tls.Certificate
	pin    pin.Pin
	log    *sink
	tune   func(*Config, *testMachine) // optional: called for each agent

	mu    sync.Mutex // guards the fields below
	agent *agent
}

type agent struct {
	*Server
	machine *testMachine
	dir     string
	addr    string
	cancel  context.CancelFunc
	done    chan error

	mu    sync.Mutex // guards the fields below
	dead  bool
	conns []net.Conn // of the clients
}

// cut closes the agent's connections. forGood also prevents new ones.
func (a *agent) cut(forGood bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dead = forGood
	for _, c := range a.conns {
		c.Close()
	}
	a.conns = nil
}

func (a *agent) dial(ctx context.Context, network string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, a.addr)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.dead {
		conn.Close()
		return nil, errors.New("the machine is off")
	}
	a.conns = append(a.conns, conn)
	return conn, nil
}

func newRig(t *testing.T) *rig {
	t.Helper()
	cert, err := rpc.SelfSigned(certtest.Key(t), "machine", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	secret, file := NewSecret()
	r := &rig{t: t, secret: secret, key: cert, pin: pin.OfCertificate(cert.Leaf), log: &sink{}}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "secret"), file, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.stop()
		if bytes.Contains(r.log.all(), []byte(secret)) {
			t.Error("the secret is in the log")
		}
	})
	r.agent = &agent{dir: dir}
	return r
}

func (r *rig) config(dir string, m *testMachine) Config {
	l, err := lock.Open(filepath.Join(dir, "lock"))
	if err != nil {
		r.t.Fatal(err)
	}
	c := Config{
		Slipway: "test",
		Lock:    l, Machine: m, SecretFile: filepath.Join(dir, "secret"), RequestFile: filepath.Join(dir, "request"),
		Certificate: func() (*tls.Certificate, error) { return r.key, nil },
		Log:         slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Pause:       func(int) time.Duration { return time.Millisecond },
	}
	if r.tune != nil {
		r.tune(&c, m)
	}
	return c
}

// start starts an agent in a directory. The hook is called at each step.
func (r *rig) start(dir string, hook func(step string)) *agent {
	r.t.Helper()
	m := &testMachine{dir: dir, reported: 3}
	s, err := New(r.config(dir, m))
	if err != nil {
		r.t.Fatal(err)
	}
	if hook != nil {
		s.pass = hook
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	a := &agent{Server: s, machine: m, dir: dir, addr: ln.Addr().String(), cancel: cancel, done: make(chan error, 1)}
	r.mu.Lock()
	r.agent = a
	r.mu.Unlock()
	go func() { a.done <- s.Run(ctx, ln) }()
	return a
}

// begin starts an agent in the rig's first directory.
func (r *rig) begin() *agent { return r.start(r.agent.dir, nil) }

func (r *rig) current() *agent {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.agent
}

func (r *rig) stop() {
	if a := r.current(); a.cancel != nil {
		_ = a.end() // tests that check the error call end themselves
	}
}

func (a *agent) end() error {
	a.cancel()
	err := <-a.done
	a.done <- err
	return err
}

// client returns a client of the current agent.
func (r *rig) client() *initclient.Client { return r.clientWith(r.pin, r.secret) }

func (r *rig) clientWith(key pin.Pin, secret string) *initclient.Client {
	r.t.Helper()
	c, err := initclient.Dial(r.t.Context(), "machine:9440", key, secret, func(ctx context.Context, network, _ string) (net.Conn, error) {
		return r.current().dial(ctx, network)
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Close() })
	return c
}

func ticket(node string) plan.Ticket {
	return plan.Ticket{Version: plan.Version, Plan: plan.Plan{Version: plan.Version, Cluster: "test", Node: node}}
}

func encoded(t *testing.T, ticket plan.Ticket) []byte {
	t.Helper()
	data, err := json.Marshal(ticket)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// copyDir copies the directory, as a power cut at this moment would leave it.
func copyDir(t *testing.T, from string) string {
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Error(err)
	}
	return to
}

type sink struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

var _ io.Writer = (*sink)(nil)

func (s *sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *sink) all() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Clone(s.buf.Bytes())
}

// testMachine is a machine whose disk is one directory: the node lock, the request, and "node", which Install writes and Wipe removes.
type testMachine struct {
	dir string

	fail     map[string]error // error by method
	hold     chan struct{}    // Established waits until it is closed
	reported int              // number of events that Established reports

	mu    sync.Mutex // guards calls
	calls []string
}

func (m *testMachine) did(what string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls = append(m.calls, what)
	return m.fail[what]
}

func (m *testMachine) repair() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = nil
}

func (m *testMachine) count(what string) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.calls {
		if c == what {
			n++
		}
	}
	return n
}

func (m *testMachine) node() string { return filepath.Join(m.dir, "node") }

func (m *testMachine) Facts() machine.Facts {
	return machine.Facts{Address: netip.MustParseAddr("192.0.2.1"), UpstreamDNS: true}
}

func (m *testMachine) Install(_ context.Context, t plan.Ticket) error {
	if err := m.did("install"); err != nil {
		return err
	}
	return os.WriteFile(m.node(), []byte(t.Plan.Node), 0o600)
}

func (m *testMachine) Established(ctx context.Context, report func(Event)) (Result, error) {
	for i := range m.reported {
		report(Event{Item: fmt.Sprintf("unit/u%d", i), ItemPhase: "ready", Text: fmt.Sprintf("line %d", i)})
	}
	if m.hold != nil {
		select {
		case <-m.hold:
		case <-ctx.Done():
			return Result{}, ctx.Err()
		}
	}
	if err := m.did("established"); err != nil {
		return Result{}, err
	}
	node, err := os.ReadFile(m.node())
	return Result{Cluster: "c-" + string(node), Node: string(node), Kubeconfig: []byte("kubeconfig of " + string(node))}, err
}

func (m *testMachine) Wipe(context.Context) error {
	if err := m.did("wipe"); err != nil {
		return err
	}
	if err := os.Remove(m.node()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
