// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Whatever is left of an interrupted life, Ensure makes the machine run and Destroy leaves nothing.
func TestEnsureRepairs(t *testing.T) {
	l := newLocal(t)
	before := hostState(t, l)
	s := Spec{Cluster: "repair", Name: "repair-1"}
	ensure(t, l, s)
	f := l.folders(s.Cluster, s.Name)
	for name, harm := range map[string]func() error{
		"PID 1 killed behind our back": func() error { return killPID1(t, l, s) },
		"pins lost, as by a reboot": func() error {
			return errors.Join(killPID1(t, l, s), unix.Unmount(l.switchPin(s.Cluster), unix.MNT_DETACH), unix.Unmount(f.netns(), unix.MNT_DETACH))
		},
		"switch lost": func() error {
			return errors.Join(killPID1(t, l, s), unix.Unmount(l.switchPin(s.Cluster), unix.MNT_DETACH))
		},
		"runc record unreadable": func() error {
			return errors.Join(killPID1(t, l, s), os.Truncate(filepath.Join(l.runcRoot(s.Cluster), s.Name, "state.json"), 3))
		},
		"runc record gone, processes alive": func() error { return os.RemoveAll(filepath.Join(l.runcRoot(s.Cluster), s.Name)) },
		"machine record gone":               func() error { return errors.Join(os.Remove(f.state()), os.Remove(f.state()+".prev")) },
		"bundle and root folder gone": func() error {
			return errors.Join(killPID1(t, l, s), os.RemoveAll(f.bundle()), os.RemoveAll(f.rootfs()))
		},
		"stale sockets": func() error { return errors.Join(killPID1(t, l, s), os.WriteFile(f.run()+"/agent.sock", nil, 0o600)) },
		"copy of slipway damaged": func() error {
			return errors.Join(killPID1(t, l, s), os.WriteFile(f.bin()+"/new", []byte("x"), 0o755), os.Rename(f.bin()+"/new", f.bin()+"/slipway"))
		},
		"mounted upon by somebody": func() error { return unix.Mount("x", f.data("home"), "tmpfs", 0, "") },
	} {
		t.Run(name, func(t *testing.T) {
			must(t, harm())
			ensure(t, l, s)
			await(t, l, s, "agent.pid", "")
			if got := run(t, l, s, "uname", "-n"); got != s.Name+"\n" {
				t.Errorf("host name %q", got)
			}
			if got := ensure(t, l, s); !got.None() {
				t.Errorf("the next Ensure changed something: %+v", got)
			}
		})
	}
	must(t, l.Destroy(t.Context(), s.Cluster))
	if diff := hostDiff(before, hostState(t, l)); diff != "" {
		t.Errorf("the host has changed: %s", diff)
	}
}

// killPID1 kills it as the kernel's OOM killer would, without telling anybody.
func killPID1(t *testing.T, l *Local, s Spec) error {
	p, err := l.pid1(t.Context(), s.Cluster, s.Name)
	if errors.Is(err, ErrNotRunning) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := p.Signal(unix.SIGKILL); err != nil {
		return err
	}
	_, err = p.Wait(t.Context(), 10*time.Second)
	return err
}

// The maker is killed at every few milliseconds of its work.
func TestEnsureKilledAtAnyMoment(t *testing.T) {
	l := newLocal(t)
	before := hostState(t, l)
	s := Spec{Cluster: "sweep", Name: "sweep-1"}
	for after := time.Duration(0); after < 120*time.Millisecond; after += 6 * time.Millisecond {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		maker := exec.CommandContext(ctx, "/proc/self/exe", "ensure", l.root, l.runc, s.Cluster, s.Name) // killed by SIGKILL
		out, err := maker.CombinedOutput()
		cancel()
		change, err2 := l.Ensure(t.Context(), s)
		if err2 != nil {
			t.Fatalf("maker killed after %v (%v, %s): %v", after, err, out, err2)
		}
		t.Logf("maker killed after %v (%v); then %+v", after, err, change)
		await(t, l, s, "agent.pid", "")
		if after%24 != 0 {
			must(t, l.PowerCut(t.Context(), s.Cluster, s.Name))
		} else {
			must(t, l.Destroy(t.Context(), s.Cluster))
		}
	}
	must(t, l.Destroy(t.Context(), s.Cluster))
	if diff := hostDiff(before, hostState(t, l)); diff != "" {
		t.Errorf("the host has changed: %s", diff)
	}
}

func TestTwoMachines(t *testing.T) {
	l := newLocal(t)
	before := hostState(t, l)
	a, b := Spec{Cluster: "two", Name: "two-a"}, Spec{Cluster: "two", Name: "two-b", Index: 1}
	ensure(t, l, a)
	ensure(t, l, b)
	out := run(t, l, a, "sh", "-c", "timeout 5 bash -c 'echo > /dev/tcp/10.89.0.11/9' 2>&1; true")
	if !strings.Contains(out, "Connection refused") { // nobody listens there: a refusal is the other machine's answer
		t.Errorf("one machine cannot reach the other: %q", out)
	}
	refusedAtOnce(t, l, a)
	list, err := l.List(t.Context(), "two")
	must(t, err)
	if len(list) != 2 || !list[0].Running || !list[1].Running || list[1].Address.String() != "10.89.0.11" || list[0].Since.IsZero() {
		t.Errorf("%+v", list)
	}
	must(t, l.Destroy(t.Context(), "two"))
	if diff := hostDiff(before, hostState(t, l)); diff != "" {
		t.Errorf("the host has changed: %s", diff)
	}
	if list, err := l.List(t.Context(), "two"); err != nil || len(list) != 0 {
		t.Errorf("after Destroy: %+v, %v", list, err)
	}
}

// refusedAtOnce connects to nowhere, more often than the kernel's default limit of ICMP answers. An answer that is swallowed or
// not heard costs a second, for the kernel asks again then. The connection alone is timed, from inside: what it takes to run a
// program there is no part of it. Three of twelve may fall into a pause of the whole host.
func refusedAtOnce(t *testing.T, l *Local, s Spec) {
	t.Helper()
	const script = `for i in 1 2 3 4 5 6 7 8 9 10 11 12; do
	begin=${EPOCHREALTIME//[.,]}
	if echo > /dev/tcp/10.96.0.1/443; then echo open; fi
	echo $((${EPOCHREALTIME//[.,]} - begin))us
done 2>/dev/null`
	took := strings.Fields(run(t, l, s, "timeout", "60", "bash", "-c", script))
	quick := 0
	for _, text := range took {
		if d, err := time.ParseDuration(text); err == nil && d < 500*time.Millisecond {
			quick++
		}
	}
	if len(took) != 12 || quick < 9 {
		t.Errorf("connections to nowhere took %v; want refusals at once", took)
	}
}

// Destroy removes links, not what they point to, and only its own cluster.
func TestDestroyStaysInside(t *testing.T) {
	l := newLocal(t)
	precious := filepath.Join(t.TempDir(), "precious")
	must(t, os.WriteFile(precious, []byte("x"), 0o600), os.MkdirAll(l.StoreDir(), 0o755), os.WriteFile(l.StoreDir()+"/blob", []byte("x"), 0o600))
	must(t, os.MkdirAll(l.clusterDir("links")+"/links-1/data", 0o755), os.MkdirAll(l.clusterDir("links2"), 0o755))
	must(t, os.Symlink(filepath.Dir(precious), l.clusterDir("links")+"/links-1/data/out"), os.Symlink(filepath.Dir(precious), l.clusterDir("links")+"/m"))
	must(t, l.Destroy(t.Context(), "links"))
	for _, path := range []string{precious, l.StoreDir() + "/blob", l.clusterDir("links2")} {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("Destroy went too far: %v", err)
		}
	}
	must(t, os.Symlink(filepath.Dir(precious), l.clusterDir("sym")))
	if err := l.Destroy(t.Context(), "sym"); err == nil || !strings.Contains(err.Error(), "no folder") {
		t.Errorf("a symlink in place of the cluster's folder: %v", err)
	}
	must(t, os.Remove(l.clusterDir("sym")))
	for _, bad := range []string{"", "..", "a/b", "A", "-a", "a."} {
		if err := l.Destroy(t.Context(), bad); err == nil {
			t.Errorf("name %q was accepted", bad)
		}
	}
}

func TestLock(t *testing.T) {
	l := newLocal(t)
	unlock, err := l.Lock(t.Context(), "c", nil)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	told := ""
	_, err = l.Lock(ctx, "c", func(holder string) { told = holder; cancel() })
	if !errors.Is(err, context.Canceled) || !strings.HasPrefix(told, fmt.Sprintf("process %d: ", os.Getpid())) {
		t.Errorf("second lock: told %q, %v", told, err)
	}
	if other, err := l.Lock(t.Context(), "d", nil); err != nil {
		t.Errorf("another cluster's lock: %v", err)
	} else {
		other()
	}
	waiting := make(chan string, 9)
	done := make(chan error, 1)
	go func() {
		again, err := l.Lock(t.Context(), "c", func(h string) { waiting <- h })
		if err == nil {
			again()
		}
		done <- err
	}()
	<-waiting
	unlock()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if entries, _ := os.ReadDir(l.root); len(entries) != 0 {
		t.Errorf("locks left something: %v", entries)
	}
}
