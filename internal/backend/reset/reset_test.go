// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/plan"
)

// host records the calls of its methods.
type host struct {
	stopped []string
	removed []string
	fail    error
}

func (h *host) StopAll(_ context.Context, order []string) error {
	h.stopped = order
	return h.fail
}

func (h *host) Do(_ context.Context, s plan.Step, e plan.Entry) error {
	if s.Verb != plan.Remove {
		return errors.New("unexpected verb")
	}
	h.removed = append(h.removed, e.Ref.String())
	return nil
}

func write(t *testing.T, path string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// everything returns a plan in a temporary directory, with data of its units and files that do not belong
// to it.
func everything(t *testing.T) (dir string, p plan.Plan, given []string) {
	t.Helper()
	dir = t.TempDir()
	var b plan.Builder
	conf := b.Add(plan.Dir{Path: dir + "/etc"})
	data := b.Add(plan.Dir{Path: dir + "/data", Data: true})
	ca := b.Add(plan.Cert{Want: pki.Want{Name: "ca", Kind: pki.CA, CertPath: dir + "/etc/ca.crt", KeyPath: dir + "/etc/ca.key"}}, conf)
	file := b.Add(plan.File{Path: dir + "/etc/f"}, conf)
	first := b.Add(plan.Unit{Name: "first"}, data, ca, file)
	b.Add(plan.Unit{Name: "second"}, first)
	for _, path := range []string{
		"/etc/ca.crt", "/etc/ca.key", "/data/member/wal", "/data/x", "/etc/given", "/etc/foreign",
		"/etc/.ca.key.41-0.tmp", "/etc/ca.crt.new", "/etc/.f.7-1.tmp", "/etc/.given.7-0.tmp", // left behind by a crash
	} {
		write(t, dir+path)
	}
	return dir, b.Plan("dev", "n1", "1"), []string{dir + "/etc/given", dir + "/etc/never-was"}
}

// The plan has no pods or network of the test machine, so nothing of the test machine is removed.
func TestRemovesWhatIsOurs(t *testing.T) {
	t.Parallel()
	dir, p, given := everything(t)
	h := &host{}
	for range 2 { // a reset may be interrupted and repeated
		if err := removeFiles(t.Context(), h, p, given); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"unit/second", "unit/first", "file/" + dir + "/etc/f", "dir/" + dir + "/etc"}; !slices.Equal(want, h.removed[:4]) {
		t.Errorf("got removals %v, want %v", h.removed, want)
	}
	var left []string
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		left = append(left, path[len(dir):])
		return err
	})
	if diff := cmp.Diff([]string{"", "/data", "/etc", "/etc/foreign"}, left); diff != "" || err != nil {
		t.Errorf("remaining files (-want +got):\n%s, %v", diff, err)
	}
}

func TestUnitsStopBackwards(t *testing.T) {
	t.Parallel()
	_, p, _ := everything(t)
	if got := unitsInReverse(p); !slices.Equal(got, []string{"second", "first"}) {
		t.Errorf("got stopped units %v", got)
	}
	h := &host{fail: errors.New("does not stop")}
	if err := Machine(t.Context(), h, p, nil); err == nil || len(h.removed) > 0 {
		t.Errorf("removed %v although units are running: %v", h.removed, err)
	}
}

// Pod processes are found by their cgroup, or because they run the shim of the plan's containerd.
func TestPods(t *testing.T) {
	t.Parallel()
	proc, shim := t.TempDir(), filepath.Join(t.TempDir(), "shim")
	write(t, shim)
	add := func(pid, cgroup, exe, stat string) {
		write(t, filepath.Join(proc, pid, "cgroup"))
		for name, text := range map[string]string{"cgroup": cgroup, "stat": stat} {
			if err := os.WriteFile(filepath.Join(proc, pid, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink(exe, filepath.Join(proc, pid, "exe")); err != nil {
			t.Fatal(err)
		}
	}
	add("10", "4:memory:/machine/kubepods/burstable/pod1/abc\n0::/x\n", "/bin/pause", "10 (pause) S 1")
	add("11", "0::/kubepods.slice/pod2\n", "/bin/app", "11 (a) b) R 1")
	add("12", "0::/init\n", shim, "12 (shim) S 1")
	add("13", "0::/docker/abc\n", "/usr/bin/containerd-shim-runc-v2", "13 (shim) S 1")
	add("14", "0::/user/my-kubepods-notes\n", "/bin/vi", "14 (vi) S 1")
	add("15", "0::/kubepods/pod3\n", "/bin/x", "15 (x) Z 1")
	write(t, filepath.Join(proc, "meminfo"))
	pids, err := podProcesses(proc, shim)
	slices.Sort(pids)
	if err != nil || !slices.Equal(pids, []int{10, 11, 12}) {
		t.Errorf("got pod processes %v, want 10, 11 and 12: %v", pids, err)
	}
}
