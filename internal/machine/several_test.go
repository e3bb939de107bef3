// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

func several(cluster string, n int) []Spec {
	var specs []Spec
	for i := range n {
		specs = append(specs, Spec{Cluster: cluster, Name: fmt.Sprintf("%s-%d", cluster, i), Index: i})
	}
	return specs
}

// ensureAll ensures all machines at once.
func ensureAll(t *testing.T, l *Local, specs []Spec) {
	t.Helper()
	var group errgroup.Group
	for _, s := range specs {
		group.Go(func() error {
			_, err := l.Ensure(t.Context(), s)
			return err
		})
	}
	must(t, group.Wait())
}

// Five at once, again and again, with another cluster coming and going beside them; then everybody reaches everybody, with
// packets as large as the link takes.
func TestFiveMachinesAtOnce(t *testing.T) {
	l := newLocal(t)
	before := hostState(t, l)
	specs := several("five", 5)
	for round := range 3 {
		var other errgroup.Group
		other.Go(func() error {
			_, err := l.Ensure(t.Context(), Spec{Cluster: "beside", Name: "beside-0"})
			return errors.Join(err, l.Destroy(t.Context(), "beside"))
		})
		ensureAll(t, l, specs)
		must(t, other.Wait())
		for _, s := range specs {
			await(t, l, s, "agent.pid", "")
		}
		if round == 1 {
			for _, s := range specs {
				must(t, l.PowerCut(t.Context(), s.Cluster, s.Name))
			}
		}
		if round == 0 {
			must(t, l.Destroy(t.Context(), "five"))
		}
	}
	for _, from := range specs {
		for _, to := range specs {
			for size, want := range map[int]bool{84: true, linkMTU: true, linkMTU + 1: false} {
				if got := reaches(t, l, from, to, size, want); got != want && from.Name != to.Name {
					t.Errorf("%d bytes from %s to %s: arrived %t, want %t", size, from.Name, to.Name, got, want)
				}
			}
		}
	}
	list, err := l.List(t.Context(), "five")
	must(t, err)
	if len(list) != 5 || !list[4].Running || list[4].Address.String() != "10.89.0.14" {
		t.Errorf("%+v", list)
	}
	must(t, l.Destroy(t.Context(), "five"))
	if diff := hostDiff(before, hostState(t, l)); diff != "" {
		t.Errorf("the host has changed: %s", diff)
	}
}

// A cut machine is alone, and stays so over stops, starts and lost namespaces, until it is healed.
func TestCutAndHeal(t *testing.T) {
	l := newLocal(t)
	specs := several("cut", 3)
	ensureAll(t, l, specs)
	check := func(when string, want string) {
		t.Helper()
		var got []string
		for i, from := range specs {
			for j, to := range specs {
				way := fmt.Sprintf("%d>%d", i, j)
				if i != j && reaches(t, l, from, to, 84, strings.Contains(want, way)) {
					got = append(got, way)
				}
			}
		}
		if diff := cmp.Diff(want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	const all, without0, without01 = "0>1 0>2 1>0 1>2 2>0 2>1", "1>2 2>1", "0>2 1>2 2>0 2>1"
	a, b := specs[0], specs[1]
	check("at first", all)
	must(t, l.Cut(t.Context(), a.Cluster, a.Name))
	check("cut", without0)
	if st := status(t, l, a); !st.Cut || !st.Running {
		t.Errorf("cut: %+v", st)
	}
	if got := run(t, l, a, "uname", "-n"); got != a.Name+"\n" { // as at a console
		t.Errorf("exec in a cut machine: %q", got)
	}
	must(t, l.PowerCut(t.Context(), a.Cluster, a.Name))
	if change, err := l.Start(t.Context(), a.Cluster, a.Name); err != nil || change != (Change{Started: true}) {
		t.Fatalf("start: %+v, %v", change, err)
	}
	check("cut, and started again", without0)
	for _, s := range specs {
		must(t, l.PowerCut(t.Context(), s.Cluster, s.Name), unix.Unmount(l.folders(s.Cluster, s.Name).netns(), unix.MNT_DETACH))
	}
	must(t, unix.Unmount(l.switchPin(a.Cluster), unix.MNT_DETACH), l.CutBetween(t.Context(), a.Cluster, b.Name, specs[2].Name))
	ensureAll(t, l, specs) // as after a reboot of the host
	check("cut, and one pair cut, after a reboot", "")
	must(t, l.Heal(t.Context(), a.Cluster, a.Name))
	check("healed", "0>1 0>2 1>0 2>0")
	must(t, l.Heal(t.Context(), a.Cluster, b.Name), l.CutBetween(t.Context(), a.Cluster, b.Name, a.Name))
	check("another pair", without01)
	if diff := cmp.Diff([]string{b.Name}, status(t, l, a).CutFrom); diff != "" {
		t.Errorf("status: %s", diff)
	}
	must(t, l.Heal(t.Context(), a.Cluster, a.Name))
	check("healed from the other end", all)
	if st := status(t, l, b); st.Cut || st.CutFrom != nil {
		t.Errorf("healed: %+v", st)
	}
	if err := l.Cut(t.Context(), a.Cluster, "cut-9"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("cut of nobody: %v", err)
	}
	if err := l.CutBetween(t.Context(), a.Cluster, a.Name, a.Name); err == nil {
		t.Error("cut from itself")
	}
}

// One machine goes, the other stays. What a removal that was broken off has left is no machine, and the next one takes it.
func TestRemove(t *testing.T) {
	l := newLocal(t)
	specs := several("rm", 2)
	ensureAll(t, l, specs)
	gone, stays := specs[1], specs[0]
	left := filepath.Join(l.clusterDir("rm"), removedPrefix+gone.Name, "data")
	must(t, os.MkdirAll(left, 0o755), l.Remove(t.Context(), gone.Cluster, gone.Name))
	list, err := l.List(t.Context(), "rm")
	must(t, err)
	if len(list) != 1 || list[0].Name != stays.Name || !list[0].Running {
		t.Errorf("left: %+v", list)
	}
	for _, dir := range []string{filepath.Dir(left), l.folders(gone.Cluster, gone.Name).dir} {
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", dir, err)
		}
	}
	if err := l.Remove(t.Context(), gone.Cluster, gone.Name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a second removal: %v", err)
	}
	must(t, os.MkdirAll(left, 0o755))
	if list, err := l.List(t.Context(), "rm"); err != nil || len(list) != 1 {
		t.Errorf("half a removal is listed: %+v, %v", list, err)
	}
}

// A start that waits for the machine's end, and a machine that is destroyed under it.
func TestOneAtATime(t *testing.T) {
	l := newLocal(t)
	s := Spec{Cluster: "turn", Name: "turn-0"}
	ensure(t, l, s)
	for range 5 {
		var group errgroup.Group
		for range 3 {
			group.Go(func() error { return l.PowerCut(t.Context(), s.Cluster, s.Name) })
			group.Go(func() error {
				_, err := l.Start(t.Context(), s.Cluster, s.Name)
				return err
			})
			group.Go(func() error {
				return errors.Join(l.Cut(t.Context(), s.Cluster, s.Name), l.Heal(t.Context(), s.Cluster, s.Name))
			})
		}
		must(t, group.Wait())
	}
	var group errgroup.Group
	group.Go(func() error { return l.Destroy(t.Context(), s.Cluster) })
	for range 3 {
		group.Go(func() error {
			if _, err := l.Start(t.Context(), s.Cluster, s.Name); !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return nil
		})
	}
	must(t, group.Wait())
	if _, err := os.Lstat(l.clusterDir(s.Cluster)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something is left: %v", err)
	}
}

// Files come before the first boot, and never again.
func TestFiles(t *testing.T) {
	l := newLocal(t)
	s := Spec{Cluster: "files", Name: "files-0", Files: map[string][]byte{"state/init-secret": []byte("one")}}
	for _, bad := range []string{"/etc/passwd", "../x", "a/../b", "store/x", "", "."} {
		other := s
		other.Files = map[string][]byte{bad: nil}
		if _, err := l.Ensure(t.Context(), other); err == nil {
			t.Errorf("file %q was accepted", bad)
		}
	}
	ensure(t, l, s)
	const inside = "/var/lib/slipway/state/init-secret"
	if got := run(t, l, s, "sh", "-c", "cat "+inside+"; stat -c ' %a' "+inside); got != "one 600\n" {
		t.Errorf("file: %q", got)
	}
	run(t, l, s, "rm", inside)
	s.Files = map[string][]byte{"state/init-secret": []byte("two")}
	must(t, l.PowerCut(t.Context(), s.Cluster, s.Name))
	ensure(t, l, s)
	must(t, l.PowerCut(t.Context(), s.Cluster, s.Name), os.Remove(l.folders(s.Cluster, s.Name).state()), os.Remove(l.folders(s.Cluster, s.Name).state()+".prev"))
	ensure(t, l, s)
	if _, err := os.Stat(filepath.Join(l.DataDir(s.Cluster, s.Name, "slipway"), "state/init-secret")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file came again: %v", err)
	}
	text, err := os.ReadFile(l.folders(s.Cluster, s.Name).state())
	must(t, err)
	if strings.Contains(string(text), "init-secret") {
		t.Errorf("the record knows the files: %s", text)
	}
}
