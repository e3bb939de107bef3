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

// What was kept just before a wipe is taken up by the loop after it has been told to end: that must not begin the node anew beside
// the wipe.
func TestNothingBeginsWhileWiping(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.config()
	c.Socket = ""
	before, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := before.remember(planOf(plan.Dir{Path: "/a"}), nil); err != nil {
		t.Fatal(err)
	}
	a, err := New(c) // its first plan is on the way to the loop
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
	a.apply <- taken // there is room when the first is taken up
	<-taken
	if all, _ := a.board.All(); len(all) > 0 {
		t.Errorf("the loop has begun with %v", all)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A permit or a vote that comes late must not lie there for the machine's next life.
func TestGiveIsForNodes(t *testing.T) {
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
		t.Error("a machine without a plan took a file")
	}
	if _, err := a.remember(planOf(plan.Dir{Path: "/a"}), nil); err != nil {
		t.Fatal(err)
	}
	if err := a.AddFile(given); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{given.Path}, a.current().Files); diff != "" {
		t.Errorf("what goes with the node (-want +got):\n%s", diff)
	}
	if _, err := a.markWipe(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(at); err != nil {
		t.Fatal(err)
	}
	if err := a.AddFile(given); err == nil {
		t.Error("a machine that is being wiped took a file")
	}
	if _, err := os.Stat(at); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file: %v", err)
	}
}

// A wipe that does not know what was made would leave everything running on a machine that counts as free.
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
		t.Errorf("the damaged plan: %q, %v", text, err)
	}
}
