// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/backend/files"
	"github.com/slipway-project/slipway/internal/backend/hosttest"
	"github.com/slipway-project/slipway/internal/backend/probe"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/testkit"
)

const agentArg = "supervise-agent"

// orders are the instructions of an agent process.
type orders struct {
	Dir, CgroupRoot, CgroupParent string
	Units                         []plan.Unit
}

// agentIfAsked runs the test binary as an agent that starts units and then waits to be killed.
func agentIfAsked() {
	if len(os.Args) < 3 || os.Args[1] != agentArg {
		return
	}
	if err := agent(os.Args[2]); err != nil {
		fmt.Println("agent:", err)
		os.Exit(1)
	}
}

func agent(text string) error {
	var o orders
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	conf, err := o.config(slog.New(slog.NewTextHandler(io.Discard, nil)), probe.New())
	if err != nil {
		return err
	}
	h, err := New(conf)
	if err != nil {
		return err
	}
	errs := make([]error, len(o.Units))
	var all sync.WaitGroup
	for i, u := range o.Units {
		all.Go(func() { errs[i] = bringUp(h, u) })
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	fmt.Println("all ready")
	select {}
}

func bringUp(h *Host, u plan.Unit) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := h.Observe(ctx, entry(u))
	if err != nil {
		return err
	}
	if step, ok := plan.Next(entry(u), s); ok {
		if err := h.Do(ctx, step, entry(u)); err != nil {
			return err
		}
	}
	return h.Await(ctx, entry(u), func(string) {})
}

func (o orders) config(log *slog.Logger, p *probe.Prober) (Config, error) {
	store, err := files.New(files.Config{Store: filepath.Join(o.Dir, "store"), Verified: filepath.Join(o.Dir, "run", "verified"), Probe: p})
	return Config{
		StateDir: filepath.Join(o.Dir, "run"), LogDir: filepath.Join(o.Dir, "log"), Files: store, Probe: p, Log: log, CgroupRoot: o.CgroupRoot, CgroupParent: o.CgroupParent,
	}, err
}

// startAgent runs an agent process. It prints "all ready" once every unit is ready.
func startAgent(t *testing.T, o orders) (cmd *exec.Cmd, out io.Reader) {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.CommandContext(t.Context(), "/proc/self/exe", agentArg, string(text))
	if out, err = cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, out
}

func kill9(cmd *exec.Cmd) {
	_ = cmd.Process.Signal(syscall.SIGKILL)
	_ = cmd.Wait() // says that it was killed
}

// The agent is killed at many moments during its start: no unit ever runs twice, and ready units are never
// restarted.
func TestAgentKilledAtAnyMoment(t *testing.T) {
	t.Parallel()
	for _, root := range cgroupRoots(t) {
		t.Run(filepath.Base(root), func(t *testing.T) {
			t.Parallel()
			killAgentAtAnyMoment(t, newBedIn(t, root))
		})
	}
}

func killAgentAtAnyMoment(t *testing.T, b *bed) {
	o := orders{Dir: b.dir, CgroupRoot: b.conf.CgroupRoot, CgroupParent: b.conf.CgroupParent}
	for i := range 3 {
		o.Units = append(o.Units, hosttest.RealUnit(b.dir, fmt.Sprintf("u%d", i), hosttest.Behaviour{Ready: plan.ProbeTCP}))
	}
	for i := range 40 {
		agent, _ := startAgent(t, o)
		timer := time.NewTimer(time.Duration(i)*time.Millisecond + rand.N(time.Millisecond))
		<-timer.C // the moment of the kill is what the test varies
		kill9(agent)
	}
	agent, out := startAgent(t, o)
	buf := make([]byte, 100)
	if n, err := out.Read(buf); err != nil || string(buf[:n]) != "all ready\n" {
		t.Fatalf("last agent: got output %q, %v", buf[:n], err)
	}
	kill9(agent)
	before := pidsOf(t, b, o)
	for range 5 {
		agent, out := startAgent(t, o)
		if n, err := out.Read(buf); err != nil || string(buf[:n]) != "all ready\n" {
			t.Fatalf("adopting agent: got output %q, %v", buf[:n], err)
		}
		kill9(agent)
	}
	if diff := cmp.Diff(before, pidsOf(t, b, o)); diff != "" {
		t.Errorf("processes were restarted: %s", diff)
	}
}

// pidsOf returns the PID of each unit's only process.
func pidsOf(t *testing.T, b *bed, o orders) map[string]int {
	t.Helper()
	groups, err := findCgroups(b.conf.CgroupRoot, b.conf.CgroupParent)
	if err != nil {
		t.Fatal(err)
	}
	h, pids := &Host{cgroups: groups}, map[string]int{}
	for _, u := range o.Units {
		// A process started by a killed agent may still be starting: it joins the cgroup, sees that its
		// start was canceled, and exits without becoming the unit's program.
		var have []int
		testkit.Eventually(t, "one process of "+u.Name, func() bool {
			have = slices.DeleteFunc(live(h, u.Name), isStarting)
			if len(have) > 1 {
				t.Fatalf("%s: got processes %v, want one", u.Name, have)
			}
			return len(have) == 1
		})
		pids[u.Name] = have[0]
	}
	return pids
}

// isStarting reports whether a process still is unit-exec, or has ended.
func isStarting(pid int) bool {
	args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err != nil || len(args) == 0 || strings.Contains(string(args), "\x00-record\x00")
}

// A process that is not our child is watched too, and its exit code is known if the kernel reports it.
func TestAdoptFromKilledAgent(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	u := hosttest.RealUnit(b.dir, "u", hosttest.Behaviour{Ready: plan.ProbeHTTP})
	agent, out := startAgent(t, orders{Dir: b.dir, CgroupRoot: b.conf.CgroupRoot, CgroupParent: b.conf.CgroupParent, Units: []plan.Unit{u}})
	buf := make([]byte, 100)
	if n, err := out.Read(buf); err != nil || string(buf[:n]) != "all ready\n" {
		t.Fatalf("agent: got output %q, %v", buf[:n], err)
	}
	kill9(agent)
	h := b.host(t)
	if s := state(t, h, u); !isFine(s) {
		t.Fatalf("got state %+v after adoption", s)
	}
	if err := syscall.Kill(status(t, h, "u").PID, syscall.SIGTERM); err != nil { // it ends with 0
		t.Fatal(err)
	}
	testkit.Eventually(t, "a restart", func() bool { return status(t, h, "u").Restarts == 1 })
	exit := status(t, h, "u").LastExit
	if exit == nil || !exit.Lost && exit.Code != 0 {
		t.Errorf("got exit %+v", exit)
	}
	t.Logf("exit: %s", exit)
	await(t, h, u)
}

// An agent that is killed while a oneshot runs leaves it running, and the next agent waits for it.
func TestAdoptRunningOneshot(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	u := hosttest.RealUnit(b.dir, "job", hosttest.Behaviour{Oneshot: true, Exit: true, HoldReady: true, Ready: plan.ProbeFile})
	agent, _ := startAgent(t, orders{Dir: b.dir, CgroupRoot: b.conf.CgroupRoot, CgroupParent: b.conf.CgroupParent, Units: []plan.Unit{u}})
	testkit.Eventually(t, "the job's start", func() bool { return hosttest.RealStarts(b.dir, "job") == 1 })
	kill9(agent)
	h := b.host(t)
	if s := state(t, h, u); s.Existence != plan.Present || !s.Matches || s.Ready {
		t.Errorf("got state %+v of a running oneshot", s)
	}
	if err := hosttest.OpenReal(b.dir, "job"); err != nil {
		t.Fatal(err)
	}
	await(t, h, u)
	if n := hosttest.RealStarts(b.dir, "job"); n != 1 {
		t.Errorf("got %d starts, want 1", n)
	}
}
