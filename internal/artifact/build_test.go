// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/catalog"
)

// small is a release of one component and its image: pause, which needs only Go and really builds in less
// than a second.
func small(t *testing.T) catalog.Release {
	t.Helper()
	return only(t, "pause")
}

func only(t *testing.T, name string) catalog.Release {
	t.Helper()
	r := catalog.Default()
	c, err := r.Component(name)
	if err != nil {
		t.Fatal(err)
	}
	r.Components = []catalog.Component{c}
	r.ImageSet = slices.DeleteFunc(r.Images(), func(i catalog.Image) bool { return i.Binary != name })
	return r
}

func build(t *testing.T, s *Store) Bundle {
	t.Helper()
	b, err := Build(t.Context(), Options{Store: s, Release: small(t)})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestBuildGivesTheSameBytes(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	first, second := build(t, s), build(t, newStore(t))
	if diff := cmp.Diff(first, second); diff != "" {
		t.Error(diff)
	}
	for d := range first.blobs() {
		if err := s.Verify(t.Context(), d); err != nil {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(s.tmp()); err != nil || len(left) > 0 {
		t.Errorf("files in tmp: got %v, %v; want none", left, err)
	}
}

func TestSecondBuildNeedsNoGo(t *testing.T) {
	s := newStore(t)
	first := build(t, s)
	t.Setenv("PATH", "/nonexistent")
	silent := func(e Event) { t.Errorf("got event %+v, want none", e) }
	second, err := Build(t.Context(), Options{Store: s, Release: small(t), Progress: silent})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, second); diff != "" {
		t.Error(diff)
	}
}

func TestDamageIsRepaired(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	want := build(t, s)
	pause := want.Binaries["pause"]
	damage := map[string]func() error{
		"blob gone":         func() error { return os.Remove(s.Path(pause.Digest)) },
		"blob shorter":      func() error { return os.Truncate(s.Path(pause.Digest), 10) },
		"blob one byte off": func() error { return flip(s.Path(pause.Digest)) },
		"image gone":        func() error { return os.Remove(s.Path(want.Images["slipway.dev/pause:3.10"].Digest)) },
		"records cut short": func() error { return truncateAll(s.records()) },
	}
	for name, do := range damage {
		if err := do(); err != nil {
			t.Fatal(err)
		}
		got, err := Build(t.Context(), Options{Store: s, Release: small(t), Verify: true})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		for d := range got.blobs() {
			if err := s.Verify(t.Context(), d); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func flip(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text[len(text)/2] ^= 1
	return os.WriteFile(path, text, 0o755)
}

func truncateAll(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, os.Truncate(filepath.Join(dir, e.Name()), 20))
	}
	return err
}

// The first builder blocks in its first event until the second reports that it waits; then the second finds
// everything built.
func TestTwoBuildersBuildOnce(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var firstHolds, secondWaits sync.Once
	holds, waits := make(chan struct{}), make(chan struct{})
	done := make(chan error)
	go func() {
		_, err := Build(t.Context(), Options{Store: s, Release: small(t), Progress: func(Event) {
			firstHolds.Do(func() { close(holds) })
			<-waits
		}})
		done <- err
	}()
	<-holds
	var events []Event
	_, err := Build(t.Context(), Options{Store: s, Release: small(t), Progress: func(e Event) {
		events = append(events, e)
		secondWaits.Do(func() { close(waits) })
	}})
	if err := errors.Join(err, <-done); err != nil {
		t.Fatal(err)
	}
	wantLine := "waiting for process " + strconv.Itoa(os.Getpid()) + ": building the bundle of Kubernetes 1.36.4"
	if len(events) != 1 || events[0].Phase != Wait || !strings.HasPrefix(events[0].Line, wantLine) {
		t.Errorf("events of the second builder: got %+v", events)
	}
}

func TestStaleLockStopsNobody(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	if err := os.WriteFile(filepath.Join(s.root, "lock"), []byte("process 1, which is dead\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	unlock, err := s.lock(t.Context(), "testing", func(holder string) { t.Errorf("waited for %s", holder) })
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}

func TestWaitCanBeCancelled(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	unlock, err := s.lock(t.Context(), "testing", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	_, err = s.lock(ctx, "testing", func(string) { cancel() })
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), ": testing") {
		t.Errorf("got %v, want context.Canceled and the holder", err)
	}
}

// fakeGo puts a program called go first in PATH. It answers `go env` like the real one and runs script for
// anything else.
func fakeGo(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	text := "#!/bin/sh\n[ \"$1\" = env ] && { echo " + toolchain() + "; exit; }\n" + script
	if err := os.WriteFile(filepath.Join(dir, "go"), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func TestCancelKillsTheWholeGroup(t *testing.T) {
	s := newStore(t)
	pidFile := filepath.Join(t.TempDir(), "pid")
	fakeGo(t, "sleep 300 &\necho $! >"+pidFile+".new; mv "+pidFile+".new "+pidFile+"\necho 'go: downloading everything' >&2\nwait")
	ctx, cancel := context.WithCancel(t.Context())
	var cancelled time.Time
	_, err := Build(ctx, Options{Store: s, Release: small(t), Progress: func(e Event) {
		if e.Done == 1 {
			cancelled = time.Now()
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	if took := time.Since(cancelled); took > 20*time.Second {
		t.Errorf("cancelling: got %v, want less", took)
	}
	text, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	grandchild, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if !dead(grandchild) {
		t.Errorf("process %d, a child of go, is still alive", grandchild)
	}
	for _, dir := range []string{s.blobs(), s.records(), s.tmp()} {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("files in %s: got %v, %v; want none", dir, left, err)
		}
	}
}

// dead waits until the process is gone or a zombie.
func dead(pid int) bool {
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return true
		}
		<-time.After(time.Millisecond)
	}
	return false
}

func TestErrorCarriesOutput(t *testing.T) {
	fakeGo(t, "echo 'go: downloading a v1' >&2; echo 'main.go:1: bad' >&2; exit 1")
	_, err := Build(t.Context(), Options{Store: newStore(t), Release: small(t)})
	if err == nil || !strings.Contains(err.Error(), "build pause 3.10: download modules of pause: exit status 1\nmain.go:1: bad") {
		t.Errorf("got %v", err)
	}
}

func TestMissingToolsAreNamed(t *testing.T) {
	fakeGo(t, "exit 1")
	t.Setenv("PATH", filepath.SplitList(os.Getenv("PATH"))[0]) // go and nothing else
	link(t, "/bin/sh", os.Getenv("PATH"))
	_, err := Build(t.Context(), Options{Store: newStore(t), Release: only(t, "runc")})
	want := "tool is missing: gcc, pkg-config, libseccomp (run slipway preflight --install)"
	if !errors.Is(err, ErrNoTool) || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}

func link(t *testing.T, program, dir string) {
	t.Helper()
	if err := os.Symlink(program, filepath.Join(dir, filepath.Base(program))); err != nil {
		t.Fatal(err)
	}
}

// TestRecordedKnowsWhatIsLost: Recorded reports a damaged record, and does not confuse it with one that never
// existed.
func TestRecordedKnowsWhatIsLost(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	if got, err := Recorded(t.Context(), s, small(t)); err != nil || len(got.Binaries)+len(got.Images) > 0 {
		t.Errorf("before any build: got %+v, %v", got, err)
	}
	want := build(t, s)
	if err := errors.Join(flip(s.Path(want.Binaries["pause"].Digest)), os.Remove(s.Path(want.Images["slipway.dev/pause:3.10"].Digest))); err != nil {
		t.Fatal(err)
	}
	got, err := Recorded(t.Context(), s, small(t))
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("got %v (-want +got):\n%s", err, diff)
	}
	if err := truncateAll(s.records()); err != nil {
		t.Fatal(err)
	}
	if _, err := Recorded(t.Context(), s, small(t)); err == nil {
		t.Error("truncated records: got nil, want an error")
	}
}
