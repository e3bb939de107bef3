// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/backend/hosttest"
	"github.com/slipway-project/slipway/internal/backend/units"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/testkit"
)

func TestProcessIsInItsCgroups(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	h := b.host(t)
	u := hosttest.RealUnit(b.dir, "u", hosttest.Behaviour{Ready: plan.ProbeTCP, Child: true})
	do(t, h, plan.Create, u)
	await(t, h, u)
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", status(t, h, "u").PID))
	if err != nil {
		t.Fatal(err)
	}
	want := "/" + b.conf.CgroupParent + "/u\n"
	if got := strings.Count(string(data), want); got != len(h.cgroups.parents) {
		t.Errorf("got %d of %d cgroups:\n%s", got, len(h.cgroups.parents), data)
	}
	do(t, h, plan.Remove, u)
	for _, parent := range h.cgroups.parents[1:] { // the child is left, and only it
		if _, err := os.Stat(filepath.Join(parent, "u")); err != nil {
			t.Errorf("the cgroup of a remaining child was removed: %v", err)
		}
	}
}

func TestCgroupsGoWithTheUnit(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	h := b.host(t)
	u := hosttest.RealUnit(b.dir, "u", hosttest.Behaviour{Ready: plan.ProbeTCP})
	do(t, h, plan.Create, u)
	await(t, h, u)
	do(t, h, plan.Remove, u)
	for _, parent := range h.cgroups.parents {
		if _, err := os.Stat(filepath.Join(parent, "u")); err == nil {
			t.Errorf("%s/u still exists", parent)
		}
	}
	left, err := filepath.Glob(filepath.Join(b.conf.StateDir, "u.*"))
	if err != nil || len(left) > 0 {
		t.Errorf("got files %v in the state directory, %v, want none", left, err)
	}
}

func TestOOMScore(t *testing.T) {
	t.Parallel()
	for name, score := range map[string]int{"raised": 500, "lowered, which may be forbidden": -900} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			h := b.host(t)
			u := hosttest.RealUnit(b.dir, "u", hosttest.Behaviour{Ready: plan.ProbeTCP})
			u.OOMScore = score
			do(t, h, plan.Create, u)
			await(t, h, u)
			got, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", status(t, h, "u").PID))
			if err != nil {
				t.Fatal(err)
			}
			if score > 0 && strings.TrimSpace(string(got)) != fmt.Sprint(score) {
				t.Errorf("got score %s, want %d", got, score)
			}
		})
	}
}

func TestEnvironmentIsSmall(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	h := b.host(t)
	u := plan.Unit{Name: "env", Args: []string{"/usr/bin/env"}, Env: []string{"MINE=1"}, Oneshot: true, Dir: "/"}
	do(t, h, plan.Create, u)
	lines, err := h.Tail("env", 50)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, line := range lines {
		name, _, _ := strings.Cut(line, "=")
		names = append(names, name)
	}
	want := []string{"PATH", "HOME", "MINE", envUnit, envRevision, envToken}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
}

func TestLogsOutliveTheHost(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	h := b.host(t)
	u := plan.Unit{Name: "talk", Args: []string{"/bin/sh", "-c", "echo one; while [ ! -e go ]; do sleep 0.01; done; echo two; exec sleep 1000"}, Dir: b.dir}
	do(t, h, plan.Create, u)
	handOver(t, b, h, func() {
		if err := os.WriteFile(filepath.Join(b.dir, "go"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "a line written while no agent runs", func() bool {
			data, _ := os.ReadFile(h.Logs("talk"))
			return string(data) == "one\ntwo\n"
		})
	})
}

func TestStopAllKeepsTheOrder(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	var stoppedUnits []string
	b.conf.OnEvent = func(e units.Event) {
		if e.Kind == units.Stopped {
			stoppedUnits = append(stoppedUnits, e.Unit)
		}
	}
	h := b.host(t)
	for _, name := range []string{"a", "b", "c"} {
		u := hosttest.RealUnit(b.dir, name, hosttest.Behaviour{Ready: plan.ProbeTCP})
		do(t, h, plan.Create, u)
		await(t, h, u)
	}
	if err := h.StopAll(t.Context(), []string{"c", "missing", "a"}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"c", "a", "b"}, stoppedUnits); diff != "" {
		t.Error(diff)
	}
}

// The parent of the process is another process, as init is for an adopted one.
func TestExitOfAnotherParentsChild(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ script, want string }{
		"code":   {"read x; exit 7", "exited with 7"},
		"signal": {"read x; kill -9 $$", "ended by signal: killed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := &Host{}
			parent := exec.CommandContext(t.Context(), "/bin/sh", "-c", `sh -c "$0" <&3 & echo $!; wait`, tt.script)
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			parent.ExtraFiles = []*os.File{r}
			out, err := parent.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := parent.Start(); err != nil {
				t.Fatal(err)
			}
			var pid int
			if _, err := fmt.Fscan(out, &pid); err != nil {
				t.Fatal(err)
			}
			p, err := h.watch(pid)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(r.Close(), w.Close()); err != nil { // its read ends
				t.Fatal(err)
			}
			<-p.done
			if got := p.exit.String(); got != tt.want && !p.exit.Lost {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if !isOld(t) && p.exit.Lost {
				t.Error("got no exit status, although this kernel reports it")
			}
			p.close()
			h.running.Wait()
			_ = parent.Wait() // says how the child ended
		})
	}
}

// isOld reports whether the kernel is older than 6.15, which is the first to report exit codes of other
// processes' children.
func isOld(t *testing.T) bool {
	t.Helper()
	var name unix.Utsname
	var major, minor int
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	return major < 6 || major == 6 && minor < 15
}

// A limit that cannot be set is reported in the unit's log, and the unit runs.
func TestImpossibleLimitIsLogged(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ file, want string }{
		"more than any kernel allows": {"[Service]\nLimitNOFILE=99999999999\n", "LimitNOFILE=99999999999: limit stays at "},
		"not a number":                {"LimitNOFILE=many\n", "LimitNOFILE=many: not a number"},
		"not readable":                {"", "limits not changed: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			err := os.WriteFile(b.conf.Limits, []byte(tc.file), 0o600)
			if tc.file == "" {
				b.conf.Limits = filepath.Join(b.conf.Limits, "x") // below a file
			}
			if err != nil {
				t.Fatal(err)
			}
			h := b.host(t)
			u := hosttest.RealUnit(b.dir, "limited", hosttest.Behaviour{Ready: plan.ProbeTCP})
			do(t, h, plan.Create, u)
			await(t, h, u)
			log, err := os.ReadFile(h.Logs(u.Name))
			if err != nil || !strings.Contains(string(log), tc.want) {
				t.Errorf("got log %q, %v, want it to contain %q", log, err, tc.want)
			}
		})
	}
}
