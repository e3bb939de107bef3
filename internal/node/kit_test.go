// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	nodev1 "github.com/slipway-project/slipway/api/node/v1"
	"github.com/slipway-project/slipway/internal/backend/fake"
	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/plan"
)

// testMachine is a host in memory, on which one agent runs after another.
type testMachine struct {
	*fake.Host
	dir string

	mu      sync.Mutex // guards the field below
	stopped []string
	reset   []string
}

func (m *testMachine) Units() []UnitStatus { return []UnitStatus{{Name: "etcd", PID: 7, Ready: true}} }

func (m *testMachine) StopAll(_ context.Context, order []string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stopped = order
	return nil
}

func (m *testMachine) Reset(_ context.Context, p plan.Plan, files []string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reset = append(m.reset, files...)
	for i := len(p.Entries) - 1; i >= 0; i-- {
		e := p.Entries[i]
		if err := m.Do(context.Background(), plan.Step{Verb: plan.Remove, Ref: e.Ref}, e); err != nil {
			return err
		}
	}
	return nil
}

func newMachine(t *testing.T) *testMachine {
	t.Helper()
	dir, err := os.MkdirTemp("", "agent") //nolint:usetesting // a socket's path has a limit
	if err != nil {
		t.Fatal(err)
	}
	h := fake.New()
	t.Cleanup(func() {
		h.Close()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return &testMachine{Host: h, dir: dir}
}

func (m *testMachine) config() Config {
	return Config{
		Host: m, Facts: machine.Facts{Address: netip.MustParseAddr("192.0.2.1"), CgroupV1: true}, PlanFile: filepath.Join(m.dir, "plan.json"), TraceFile: filepath.Join(m.dir, "trace.json"),
		Socket: filepath.Join(m.dir, "s"), Version: "v1", Log: slog.New(slog.DiscardHandler),
	}
}

// life is one agent from its start to its end.
type life struct {
	*Agent
	client nodev1.NodeClient
	end    func() // as a SIGTERM does; a second call does nothing
}

func (m *testMachine) boot(t *testing.T, c Config) life {
	t.Helper()
	a, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx, nil) }()
	conn, err := grpc.NewClient("unix:"+c.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	end := sync.OnceFunc(func() {
		cancel()
		begun := time.Now()
		if err := <-ended; err != nil || time.Since(begun) > time.Second {
			t.Errorf("the agent ended after %s with error %v", time.Since(begun), err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	return life{a, nodev1.NewNodeClient(conn), end}
}

func (l life) send(t *testing.T, p plan.Plan, control string) (changed bool) {
	t.Helper()
	wire, err := plan.Encode(p)
	if err != nil {
		t.Fatal(err)
	}
	r, err := l.client.Apply(t.Context(), &nodev1.ApplyRequest{Plan: wire, Control: []byte(control)}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	return r.GetChanged()
}

// converged watches until the agent reports that it has converged, and returns all events.
func (l life) converged(t *testing.T) (last *nodev1.Event, all []*nodev1.Event) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stream, err := l.client.Watch(ctx, &nodev1.WatchRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	for {
		e, err := stream.Recv()
		if err != nil {
			status, _ := l.board.All()
			t.Fatalf("watch: %v; board: %v", err, status)
		}
		all = append(all, e)
		if e.GetConverged() {
			return e, all
		}
	}
}

func planOf(items ...plan.Item) plan.Plan {
	var b plan.Builder
	for _, it := range items {
		b.Add(it)
	}
	return b.Plan("dev", "n1", "1.36.4")
}

func etcd() plan.Unit { return plan.Unit{Name: "etcd", Args: []string{"/bin/etcd"}} }
