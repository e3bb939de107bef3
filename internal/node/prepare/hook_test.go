// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestHook(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	h := Host{Root: t.TempDir(), Out: &out}
	const dir = "/state/hooks/"
	hook := func(marker, script string) []string {
		return []string{"hook", dir + marker, "10s", "/bin/sh", "-c", script}
	}

	wantError(t, h.Done(t.Context(), hook("a.1", "")), "the hook has not completed yet")
	wantError(t, h.Do(t.Context(), hook("a.1", "echo one; echo the reason >&2; exit 3")), "exit status 3: the reason")
	if h.exists(dir + "a.1") {
		t.Error("a hook that failed has a marker")
	}
	if got := out.String(); got != "one\nthe reason\n" {
		t.Errorf("got output %q", got)
	}
	wantError(t, h.Do(t.Context(), hook("a.1", "true")), "")
	wantError(t, h.Do(t.Context(), hook("ab.1", "true")), "")
	wantError(t, h.Do(t.Context(), hook("a.2", "true")), "")
	wantError(t, h.Done(t.Context(), hook("a.2", "")), "")
	wantError(t, h.Done(t.Context(), hook("a.1", "")), "the hook has not completed yet") // its earlier version no longer counts
	entries, err := os.ReadDir(h.path(dir))
	if err != nil || len(entries) != 2 {
		t.Errorf("got markers %v, error %v, want 2", entries, err)
	}
	if info, err := os.Stat(h.path(dir + "a.2")); err != nil || info.Size() == 0 {
		t.Errorf("the marker is empty, which a file probe counts as missing: %v", err)
	}
}

// TestHookThatHangs checks that neither the hook nor a child outlives its timeout.
func TestHookThatHangs(t *testing.T) {
	t.Parallel()
	h := Host{Root: t.TempDir()}
	pid := filepath.Join(h.Root, "pid")
	start := time.Now()
	err := h.Do(t.Context(), []string{"hook", "/marks/a.1", "3s", "/bin/sh", "-c", "sleep 300 & echo $! >" + pid + "; echo waiting; wait"})
	wantError(t, err, "timed out after 3s and was killed: waiting")
	if took := time.Since(start); took > 30*time.Second { // the child sleeps longer
		t.Errorf("took %s, want about 3 s", took)
	}
	if h.exists("/marks/a.1") {
		t.Error("a hook that was killed has a marker")
	}
	child, err := os.ReadFile(pid)
	if err != nil {
		t.Fatal(err)
	}
	awaitExit(t, strings.TrimSpace(string(child)))
}

// awaitExit gives the kernel a moment. A zombie counts as dead.
func awaitExit(t *testing.T, pid string) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) || strings.Contains(string(stat), ") Z ") {
			return
		}
		<-time.After(time.Millisecond)
	}
	t.Errorf("process %s, a child of the hook, is still running", pid)
}

func TestBadHooks(t *testing.T) {
	t.Parallel()
	h := Host{Root: t.TempDir()}
	wantError(t, h.Do(t.Context(), strings.Fields("hook /marks/a.1 1s")), "want marker, timeout and command")
	wantError(t, h.Do(t.Context(), strings.Fields("hook /marks/a.1 soon /bin/true")), "run hook")
	wantError(t, h.Done(t.Context(), []string{"hook"}), "want a marker file")
	wantError(t, h.Do(t.Context(), strings.Fields("hook /marks/a.1 5s /no/such/program")), "no such file")
}
