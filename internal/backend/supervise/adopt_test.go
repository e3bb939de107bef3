// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/backend/hosttest"
	"github.com/slipway-project/slipway/internal/backend/units"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/testkit"
)

func entry(u plan.Unit) plan.Entry { return plan.Entry{Ref: plan.RefOf(u), Item: u} }

func do(t *testing.T, h *Host, v plan.Verb, u plan.Unit) {
	t.Helper()
	if err := h.Do(t.Context(), plan.Step{Verb: v, Ref: plan.RefOf(u)}, entry(u)); err != nil {
		t.Fatal(err)
	}
}

func await(t *testing.T, h *Host, u plan.Unit) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := h.Await(ctx, entry(u), func(reason string) { t.Log(reason) }); err != nil {
		t.Fatal(err)
	}
}

func state(t *testing.T, h *Host, u plan.Unit) plan.State {
	t.Helper()
	s, err := h.Observe(t.Context(), entry(u))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func isFine(s plan.State) bool { return s.Existence == plan.Present && s.Matches && s.Ready }

func status(t *testing.T, h *Host, name string) units.Status {
	t.Helper()
	all := h.Status()
	i := slices.IndexFunc(all, func(s units.Status) bool { return s.Name == name })
	if i < 0 {
		t.Fatalf("no status of %s in %+v", name, all)
	}
	return all[i]
}

// handOver closes the Host, which leaves the same state behind as a killed agent, and opens a new one.
func handOver(t *testing.T, b *bed, h *Host, between func()) *Host {
	t.Helper()
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	between()
	return b.host(t)
}

func TestAdoptRunning(t *testing.T) {
	t.Parallel()
	for _, kind := range []plan.ProbeKind{plan.ProbeNone, plan.ProbeHTTP, plan.ProbeNotify} {
		t.Run("ready by "+string(kind), func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			h := b.host(t)
			f := plan.File{Path: filepath.Join(b.dir, "input"), Mode: 0o600, Content: "1"}
			u := hosttest.RealUnit(b.dir, "u", hosttest.Behaviour{Ready: kind})
			u.Inputs = []plan.Ref{plan.RefOf(f)}
			fe := plan.Entry{Ref: plan.RefOf(f), Item: f}
			if err := h.Do(t.Context(), plan.Step{Verb: plan.Create, Ref: fe.Ref}, fe); err != nil {
				t.Fatal(err)
			}
			do(t, h, plan.Create, u)
			await(t, h, u)
			pid := status(t, h, "u").PID
			for range 3 {
				h = handOver(t, b, h, func() {})
				if s := state(t, h, u); !isFine(s) {
					t.Fatalf("got state %+v after adoption", s)
				}
				await(t, h, u)
				if got := status(t, h, "u"); got.PID != pid || got.Restarts != 0 {
					t.Fatalf("got status %+v, want PID %d and no restart", got, pid)
				}
			}
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, "a restart of the adopted unit", func() bool { return status(t, h, "u").Restarts == 1 })
			await(t, h, u)
			do(t, h, plan.Remove, u)
			if n := len(live(h, "u")); n != 0 {
				t.Errorf("got %d processes after removal, want 0", n)
			}
		})
	}
}

// A unit that exits while no agent runs is restarted by the next agent.
func TestAdoptDead(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	h := b.host(t)
	u := hosttest.RealUnit(b.dir, "u", hosttest.Behaviour{Ready: plan.ProbeTCP})
	do(t, h, plan.Create, u)
	await(t, h, u)
	pid := status(t, h, "u").PID
	h = handOver(t, b, h, func() {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		_, _ = syscall.Wait4(pid, nil, 0, nil)
	})
	await(t, h, u)
	if n := hosttest.RealStarts(b.dir, "u"); n != 2 {
		t.Errorf("got %d starts, want 2", n)
	}
	if got := status(t, h, "u").PID; got == pid || got == 0 {
		t.Errorf("got PID %d", got)
	}
}

// The agent is killed after the fork and before it has recorded the PID: the record only says that a start
// was intended.
func TestKilledBetweenForkAndRecord(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	h := b.host(t)
	u := hosttest.RealUnit(b.dir, "u", hosttest.Behaviour{Ready: plan.ProbeTCP, Child: true})
	do(t, h, plan.Create, u)
	await(t, h, u)
	pid := status(t, h, "u").PID
	h = handOver(t, b, h, func() {
		rewrite(t, b, "u", func(r *record) { r.Phase, r.PID, r.Start, r.Ready = starting, 0, 0, false })
	})
	if got := status(t, h, "u").PID; got != pid {
		t.Errorf("got PID %d, want %d, found by its cgroup", got, pid)
	}
	await(t, h, u)
	if s := state(t, h, u); !isFine(s) {
		t.Errorf("got state %+v after adoption", s)
	}
	if n := hosttest.RealStarts(b.dir, "u"); n != 1 {
		t.Errorf("got %d starts, want 1", n)
	}
}

// The agent is killed before the fork: nothing runs, and exactly one process is started.
func TestKilledBeforeFork(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	h := b.host(t)
	u := hosttest.RealUnit(b.dir, "u", hosttest.Behaviour{Ready: plan.ProbeTCP})
	do(t, h, plan.Create, u)
	await(t, h, u)
	pid := status(t, h, "u").PID
	h = handOver(t, b, h, func() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		_, _ = syscall.Wait4(pid, nil, 0, nil)
		rewrite(t, b, "u", func(r *record) { r.Phase, r.PID, r.Start, r.Ready = starting, 0, 0, false })
	})
	await(t, h, u)
	if n := len(live(h, "u")); n != 1 {
		t.Errorf("got %d processes, want 1", n)
	}
}

// A starting process exits when another agent has taken over.
func TestExecRefusesStaleToken(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	h := b.host(t)
	u := hosttest.RealUnit(b.dir, "u", hosttest.Behaviour{})
	do(t, h, plan.Create, u)
	testkit.Eventually(t, "the first start", func() bool { return hosttest.RealStarts(b.dir, "u") == 1 })
	dirs, err := h.cgroups.make("u")
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{"unit-exec", "-record", h.recordPath("u"), "-token", "stale", "-cgroups", strings.Join(dirs, ":"), "--"}, u.Args...)
	out, err := exec.CommandContext(t.Context(), u.Args[0], args...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "start canceled") {
		t.Errorf("stale start: got error %v, output %s", err, out)
	}
	if n := hosttest.RealStarts(b.dir, "u"); n != 1 {
		t.Errorf("got %d starts, want 1", n)
	}
}

// An agent that takes over changes the token before it looks for the process: a process that comes later
// exits.
func TestAdoptionTakesTheTokenBack(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	h := b.host(t)
	u := hosttest.RealUnit(b.dir, "job", hosttest.Behaviour{Oneshot: true, Exit: true})
	do(t, h, plan.Create, u)
	h = handOver(t, b, h, func() {
		rewrite(t, b, "job", func(r *record) { r.Phase, r.Token, r.PID, r.Start = starting, "late", 0, 0 })
	})
	dirs, err := h.cgroups.make("job")
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{"unit-exec", "-record", h.recordPath("job"), "-token", "late", "-cgroups", strings.Join(dirs, ":"), "--"}, u.Args...)
	out, err := exec.CommandContext(t.Context(), u.Args[0], args...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "start canceled") {
		t.Errorf("late start: got error %v, output %s", err, out)
	}
}

// Damaged records never lead to a second copy: the running process is kept until the plan says what should
// run.
func TestAdoptWithDamagedRecord(t *testing.T) {
	t.Parallel()
	tests := map[string]func(path string) error{
		"newest damaged": func(p string) error { return os.Truncate(p, 20) },
		"both damaged":   func(p string) error { return errors.Join(os.Truncate(p, 20), os.Truncate(p+".prev", 20)) },
	}
	for name, damage := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			h := b.host(t)
			u := hosttest.RealUnit(b.dir, "u", hosttest.Behaviour{Ready: plan.ProbeTCP})
			do(t, h, plan.Create, u)
			await(t, h, u)
			h = handOver(t, b, h, func() {
				if err := damage(h.recordPath("u")); err != nil {
					t.Fatal(err)
				}
			})
			if n := len(live(h, "u")); n != 1 {
				t.Fatalf("got %d processes after the new agent has started, want 1", n)
			}
			if step, ok := plan.Next(entry(u), state(t, h, u)); ok {
				do(t, h, step.Verb, u)
			}
			await(t, h, u)
			if n := len(live(h, "u")); n != 1 {
				t.Errorf("got %d processes, want 1", n)
			}
		})
	}
}

// Records of another boot are ignored.
func TestRecordOfAnotherBootIsIgnored(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	h := b.host(t)
	u := hosttest.RealUnit(b.dir, "u", hosttest.Behaviour{})
	do(t, h, plan.Create, u)
	do(t, h, plan.Remove, u)
	do(t, h, plan.Create, u)
	pid := status(t, h, "u").PID
	h = handOver(t, b, h, func() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		_, _ = syscall.Wait4(pid, nil, 0, nil)
		rewrite(t, b, "u", func(r *record) { r.Boot = "another" })
	})
	if s := state(t, h, u); s.Existence != plan.Absent {
		t.Errorf("got state %+v, want absent", s)
	}
}

func TestStopIsContinuedByTheNextAgent(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	h := b.host(t)
	u := hosttest.RealUnit(b.dir, "u", hosttest.Behaviour{Ready: plan.ProbeTCP, IgnoreTerm: true})
	u.StopTimeout = 300 * time.Millisecond
	do(t, h, plan.Create, u)
	await(t, h, u)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := h.Do(ctx, plan.Step{Verb: plan.Remove, Ref: plan.RefOf(u)}, entry(u)); err == nil {
		t.Fatal("the stop was not interrupted")
	}
	h = handOver(t, b, h, func() {})
	if s := state(t, h, u); s.Existence != plan.Present || s.Matches {
		t.Errorf("got state %+v of a stopping unit", s)
	}
	do(t, h, plan.Remove, u)
	if n := len(live(h, "u")); n != 0 {
		t.Errorf("got %d processes, want 1", n)
	}
}

func TestOneHostPerStateDir(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.host(t)
	if h, err := New(b.conf); err == nil {
		_ = h.Close()
		t.Error("two hosts supervise the same units")
	}
}

func rewrite(t *testing.T, b *bed, name string, change func(*record)) {
	t.Helper()
	path := filepath.Join(b.conf.StateDir, name+".state")
	var r record
	if err := durable.Load(path, recordSchema, &r); err != nil {
		t.Fatal(err)
	}
	change(&r)
	if err := durable.Save(path, recordSchema, r); err != nil {
		t.Fatal(err)
	}
}

// A process that executes a new program has neither arguments nor environment for a moment. It is not
// overlooked.
func TestReadProcessDuringExec(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "again.sh")
	if err := os.WriteFile(script, []byte("[ $1 = 0 ] || exec sh $0 $(($1-1))\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	again := exec.CommandContext(t.Context(), "sh", script, "500")
	if err := again.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- again.Wait() }()
	for looks, blanks := 0, 0; ; looks++ {
		if len(nulSeparated(fmt.Sprintf("/proc/%d/environ", again.Process.Pid))) == 0 {
			blanks++
		}
		args, env := readProcess(again.Process.Pid)
		select {
		case err := <-ended:
			if t.Logf("%d looks, %d would have overlooked it", looks, blanks); err != nil || looks == 0 {
				t.Fatal(err, looks)
			}
			return
		default:
		}
		if (len(args) == 0 || len(env) == 0) && !isZombie(again.Process.Pid) {
			t.Fatalf("got arguments %q, environment %q", args, env)
		}
	}
}
