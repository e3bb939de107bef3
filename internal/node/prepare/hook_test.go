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
	hook := func(mark, script string) []string {
		return []string{"hook", dir + mark, "10s", "/bin/sh", "-c", script}
	}

	says(t, h.Done(t.Context(), hook("a.1", "")), "it has not run to its end")
	says(t, h.Do(t.Context(), hook("a.1", "echo one; echo the reason >&2; exit 3")), "exit status 3: the reason")
	if h.exists(dir + "a.1") {
		t.Error("a hook that failed has its mark")
	}
	if got := out.String(); got != "one\nthe reason\n" {
		t.Errorf("said %q", got)
	}
	says(t, h.Do(t.Context(), hook("a.1", "true")), "")
	says(t, h.Do(t.Context(), hook("ab.1", "true")), "")
	says(t, h.Do(t.Context(), hook("a.2", "true")), "")
	says(t, h.Done(t.Context(), hook("a.2", "")), "")
	says(t, h.Done(t.Context(), hook("a.1", "")), "it has not run to its end") // what it did before counts no longer
	entries, err := os.ReadDir(h.path(dir))
	if err != nil || len(entries) != 2 {
		t.Errorf("marks %v, %v", entries, err)
	}
	if info, err := os.Stat(h.path(dir + "a.2")); err != nil || info.Size() == 0 {
		t.Errorf("the mark is empty, and a probe of files takes it for none: %v", err)
	}
}

// TestHookThatHangs: nothing of it outlives its time, no child either.
func TestHookThatHangs(t *testing.T) {
	t.Parallel()
	h := Host{Root: t.TempDir()}
	pid := filepath.Join(h.Root, "pid")
	begun := time.Now()
	err := h.Do(t.Context(), []string{"hook", "/marks/a.1", "3s", "/bin/sh", "-c", "sleep 300 & echo $! >" + pid + "; echo waiting; wait"})
	says(t, err, "it has not ended within 3s and was killed: waiting")
	if took := time.Since(begun); took > 30*time.Second { // the child sleeps longer
		t.Errorf("took %s", took)
	}
	if h.exists("/marks/a.1") {
		t.Error("it has a mark")
	}
	child, err := os.ReadFile(pid)
	if err != nil {
		t.Fatal(err)
	}
	diesSoon(t, strings.TrimSpace(string(child)))
}

// diesSoon gives the kernel a moment; a zombie is dead too.
func diesSoon(t *testing.T, pid string) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) || strings.Contains(string(stat), ") Z ") {
			return
		}
		<-time.After(time.Millisecond)
	}
	t.Errorf("process %s, a child of the hook, lives on", pid)
}

func TestBadHooks(t *testing.T) {
	t.Parallel()
	h := Host{Root: t.TempDir()}
	says(t, h.Do(t.Context(), strings.Fields("hook /marks/a.1 1s")), "want marker, timeout and command")
	says(t, h.Do(t.Context(), strings.Fields("hook /marks/a.1 soon /bin/true")), "run a hook")
	says(t, h.Done(t.Context(), []string{"hook"}), "without its marker")
	says(t, h.Do(t.Context(), strings.Fields("hook /marks/a.1 5s /no/such/program")), "no such file")
}
