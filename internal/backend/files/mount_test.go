// SPDX-License-Identifier: Apache-2.0

package files

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/plan"
)

const inNamespace = "SLIPWAY_TEST_MOUNTS"

// TestMount runs itself in its own mount namespace, so that the machine's mounts stay untouched.
func TestMount(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount")
	}
	if os.Getenv(inNamespace) == "" {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestMount$", "-test.v")
		cmd.Env = append(os.Environ(), inNamespace+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	dir := t.TempDir()
	h := newHost(t, dir, nil)
	source := filepath.Join(dir, "source")
	write(t, filepath.Join(source, "f"), "x")
	tmpfs := plan.Mount{Target: filepath.Join(dir, "with space"), Source: "tmpfs", Type: "tmpfs", Options: []string{"size=1m", "nosuid"}}
	bind := plan.Mount{Target: filepath.Join(dir, "bound"), Source: source, Type: "bind", Options: []string{"bind", "ro"}}
	for _, m := range []plan.Mount{tmpfs, bind} {
		wantState(t, h, m, plan.State{Existence: plan.Absent, Detail: "nothing is mounted there"})
		make1(t, h, m)
		make1(t, h, m)
	}
	if err := os.WriteFile(filepath.Join(bind.Target, "g"), nil, 0o600); err == nil {
		t.Error("write to a read-only mount succeeded")
	}
	// A directory that is a mount point is not removed.
	if err := h.Do(t.Context(), plan.Step{Verb: plan.Remove}, entry(plan.Dir{Path: tmpfs.Target})); err != nil {
		t.Errorf("remove a mount point: %v", err)
	}
	wantState(t, h, tmpfs, plan.State{Existence: plan.Present, Matches: true, Ready: true})
	tmpfs.Options = append(tmpfs.Options, "noexec")
	wantState(t, h, tmpfs, wrong("option noexec is missing"))
	make1(t, h, tmpfs)
	other := bind
	other.Source = dir
	wantState(t, h, other, wrong("not "+dir+" but something else is mounted there"))
	for _, m := range []plan.Mount{tmpfs, bind} {
		if err := h.Do(t.Context(), plan.Step{Verb: plan.Remove}, entry(m)); err != nil {
			t.Fatal(err)
		}
		wantState(t, h, m, plan.State{Existence: plan.Absent, Detail: "nothing is mounted there"})
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), dir) {
		t.Errorf("mounts remain: %v", err)
	}
}

func TestParseMount(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		want mounted
		ok   bool
	}{
		"36 35 98:0 / /a rw,noatime shared:1 master:2 - ext4 /dev/sda1 rw,errors=continue": {mounted{"/a", "ext4", "/dev/sda1", []string{"rw", "noatime"}}, true},
		`36 35 0:1 / /a\040b\134c ro - tmpfs a\011b rw`:                                    {mounted{`/a b\c`, "tmpfs", "a\tb", []string{"ro"}}, true},
		"36 35 98:0 / /a rw": {mounted{}, false},
		"":                   {mounted{}, false},
		"36 35 - ext4 x rw":  {mounted{}, false},
	}
	for line, tt := range tests {
		got, ok := parseMount(line)
		if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(mounted{})); ok != tt.ok || diff != "" {
			t.Errorf("%q: got %v %s", line, ok, diff)
		}
	}
}
