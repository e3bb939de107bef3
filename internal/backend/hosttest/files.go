// SPDX-License-Identifier: Apache-2.0

package hosttest

import (
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/core/plan"
)

func missing() plan.State { return plan.State{Existence: plan.Absent} }
func drifted() plan.State { return plan.State{Existence: plan.Present} }
func fine() plan.State {
	return plan.State{Existence: plan.Present, Matches: true, Ready: true}
}
func waiting() plan.State { return plan.State{Existence: plan.Present, Matches: true} }

func fileIsMadeAndRepaired(t *testing.T, k kit) {
	f := plan.File{Path: filepath.Join(k.Dir, "deep", "er", "f.conf"), Mode: 0o600, Content: "one\ntwo\n"}
	k.want(f, missing())
	if verb := k.converge(f); verb != plan.Create {
		t.Errorf("absent file: got verb %q, want create", verb)
	}
	k.WriteFile(f.Path, 0o644, f.Content)
	k.want(f, drifted())
	k.wantDetail(f, "mode 0644, want 0600")
	k.converge(f)
	k.WriteFile(f.Path, 0o600, "one\nthree\n")
	k.want(f, drifted())
	k.wantDetail(f, "content")
	if s := k.observe(f); strings.Contains(s.Detail, "three") {
		t.Errorf("detail %q contains file content", s.Detail)
	}
	if verb := k.converge(f); verb != plan.Replace {
		t.Errorf("changed file: got verb %q, want replace", verb)
	}
	if mode, content, ok := k.ReadFile(f.Path); !ok || mode != fs.FileMode(f.Mode) || content != f.Content {
		t.Errorf("got file %04o %q", mode, content)
	}
	if verb := k.converge(f); verb != "" {
		t.Errorf("correct file: got verb %q, want none", verb)
	}
}

func dirIsMadeAndRepaired(t *testing.T, k kit) {
	d := plan.Dir{Path: filepath.Join(k.Dir, "a", "b"), Mode: 0o700}
	k.want(d, missing())
	k.converge(d)
	wider := d
	wider.Mode = 0o755
	k.want(wider, drifted())
	k.wantDetail(wider, "mode 0700, want 0755")
	k.converge(wider)
	k.do(plan.Create, wider)
	k.want(wider, fine())
	k.do(plan.Remove, wider)
	k.want(wider, missing())
	k.do(plan.Remove, wider)
}

func removeKeepsForeignFiles(t *testing.T, k kit) {
	d := plan.Dir{Path: filepath.Join(k.Dir, "d"), Mode: 0o755}
	k.converge(d)
	theirs := filepath.Join(d.Path, "theirs")
	k.WriteFile(theirs, 0o644, "data")
	k.do(plan.Remove, d)
	if _, content, ok := k.ReadFile(theirs); !ok || content != "data" {
		t.Error("Remove deleted a directory that contains a foreign file")
	}
	f := plan.File{Path: filepath.Join(k.Dir, "f"), Mode: 0o644, Content: "x"}
	k.converge(f)
	k.do(plan.Remove, f)
	k.want(f, missing())
	k.do(plan.Remove, f)
}

func preconditionIsNeverMade(t *testing.T, k kit) {
	g := k.Precondition("peer")
	if s := k.observe(g); s.Ready {
		t.Errorf("a closed precondition is ready")
	}
	if step, ok := plan.Next(entry(g), k.observe(g)); ok {
		t.Errorf("got step %q for a precondition, want none", step.Verb)
	}
	for _, v := range []plan.Verb{plan.Create, plan.Replace} {
		if err := k.tryDo(t.Context(), v, g); err == nil {
			t.Errorf("%s of a precondition succeeded, want an error", v)
		}
	}
	k.do(plan.Remove, g)
}

func preconditionIsAwaited(t *testing.T, k kit) {
	g := k.Precondition("peer")
	k.readyOnOpen(g, "peer")
	k.want(g, fine())
}

// readyOnOpen checks that Await reports a reason before the item is opened and returns soon afterwards.
func (k kit) readyOnOpen(it plan.Item, name string) {
	k.t.Helper()
	reasons, done := make(chan string, 100), make(chan error, 1)
	go func() { done <- k.Host.Await(k.t.Context(), entry(it), func(reason string) { reasons <- reason }) }()
	select {
	case reason := <-reasons:
		if reason == "" {
			k.t.Error("the reason for waiting is empty")
		}
	case err := <-done:
		k.t.Fatalf("await returned before the item was opened: %v", err)
	case <-time.After(time.Minute):
		k.t.Fatal("await reported no reason")
	}
	k.Open(name)
	opened := time.Now()
	if err := <-done; err != nil {
		k.t.Fatalf("await: %v", err)
	}
	if took := time.Since(opened); took > 500*time.Millisecond*slack {
		k.t.Errorf("await returned %s after the item was ready", took)
	}
}
