// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/plan"
)

// TestNoStartWhileWiping: the loop may receive a plan that was stored just before a wipe after it was stopped for the wipe. It must not
// start that plan.
func TestNoStartWhileWiping(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.config()
	c.Socket = ""
	before, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := before.store(planOf(plan.Dir{Path: "/a"}), nil); err != nil {
		t.Fatal(err)
	}
	a, err := New(c) // its first plan waits for the loop
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.markWipe(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx, nil) }()
	taken := make(chan struct{})
	a.apply <- taken // does not block once the loop has received the first one
	<-taken
	if all, _ := a.board.All(); len(all) > 0 {
		t.Errorf("got items %v, want none", all)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestAddFileIsForNodes: a file that arrives after a wipe has begun must not remain for the next node.
func TestAddFileIsForNodes(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.config()
	c.Root = m.dir
	a, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	given := plan.TicketFile{Path: "/var/lib/slipway/state/permit", Mode: 0o600, Content: []byte("x")}
	at := filepath.Join(m.dir, given.Path)
	if err := a.AddFile(given); err == nil {
		t.Error("without a plan: got no error")
	}
	if _, err := a.store(planOf(plan.Dir{Path: "/a"}), nil); err != nil {
		t.Fatal(err)
	}
	if err := a.AddFile(given); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{given.Path}, a.current().Files); diff != "" {
		t.Errorf("files of the node (-want +got):\n%s", diff)
	}
	if _, err := a.markWipe(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(at); err != nil {
		t.Fatal(err)
	}
	if err := a.AddFile(given); err == nil {
		t.Error("during a wipe: got no error")
	}
	if _, err := os.Stat(at); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("file: got %v, want none", err)
	}
}

// TestNoWipeWithoutThePlan: without a readable plan, a wipe would leave everything running on a machine that counts as free.
func TestNoWipeWithoutThePlan(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.config()
	write(t, c.PlanFile, "{}")
	a, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	err = a.Wipe(t.Context(), func() error {
		t.Error("the machine was released")
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "slipway up") {
		t.Errorf("got %v, want an error with the next step", err)
	}
	if text, err := os.ReadFile(c.PlanFile); err != nil || string(text) != "{}" {
		t.Errorf("damaged plan: got %q, %v", text, err)
	}
}
