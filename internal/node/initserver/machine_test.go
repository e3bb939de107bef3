// SPDX-License-Identifier: Apache-2.0

package initserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/slipway-project/slipway/internal/core/plan"
)

// machine is a machine whose whole disk is one folder: the journal, the request, and "node", which Install writes and Wipe removes.
type machine struct {
	dir string

	fail     map[string]error // by method: what it gives
	hold     chan struct{}    // Established waits for its end
	reported int              // how many events Established reports

	mu    sync.Mutex // guards calls
	calls []string
}

func (m *machine) did(what string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls = append(m.calls, what)
	return m.fail[what]
}

func (m *machine) mend() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = nil
}

func (m *machine) count(what string) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.calls {
		if c == what {
			n++
		}
	}
	return n
}

func (m *machine) node() string { return filepath.Join(m.dir, "node") }

func (m *machine) Facts() Facts {
	return Facts{Slipway: "test", Address: "192.0.2.1", UpstreamDNS: true}
}

func (m *machine) Install(_ context.Context, t plan.Ticket) error {
	if err := m.did("install"); err != nil {
		return err
	}
	return os.WriteFile(m.node(), []byte(t.Plan.Node), 0o600)
}

func (m *machine) Established(ctx context.Context, report func(Event)) (Result, error) {
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

func (m *machine) Wipe(context.Context) error {
	if err := m.did("wipe"); err != nil {
		return err
	}
	if err := os.Remove(m.node()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
