// SPDX-License-Identifier: Apache-2.0

package initserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"sync"

	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/plan"
)

// testMachine is a machine whose whole disk is one folder: the journal, the request, and "node", which Install writes and Wipe removes.
type testMachine struct {
	dir string

	fail     map[string]error // by method: what it gives
	hold     chan struct{}    // Established waits for its end
	reported int              // how many events Established reports

	mu    sync.Mutex // guards calls
	calls []string
}

func (m *testMachine) did(what string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls = append(m.calls, what)
	return m.fail[what]
}

func (m *testMachine) mend() {
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
