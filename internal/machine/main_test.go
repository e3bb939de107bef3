// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/bintest"
)

// The test binary plays slipway inside the machines: PID 1, the agent, and a component that the agent starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "machine-init":
			log := slog.New(slog.NewTextHandler(os.Stdout, nil))
			if os.Args[2] == "--systemd" {
				fmt.Println(BecomeSystemd(log))
				os.Exit(1)
			}
			if err := Init(context.Background(), InitConfig{Agent: append([]string{"/proc/self/exe"}, os.Args[3:]...), Log: log}); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
			return
		case "agent":
			stubAgent()
			return
		case "component":
			select {}
		case "ping":
			if err := ping(os.Args[2], os.Args[3], os.Args[4]); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
			return
		case "leave-root":
			if err := leaveCgroupRoot(os.Args[2]); err != nil {
				fmt.Println(err)
			}
			text, _ := os.ReadFile("/proc/self/cgroup")
			fmt.Print(string(text))
			return
		case "ensure":
			l, err := New(Config{Root: os.Args[2], Runc: os.Args[3], Log: slog.New(slog.DiscardHandler)})
			if err == nil {
				_, err = l.Ensure(context.Background(), Spec{Cluster: os.Args[4], Name: os.Args[5]})
			}
			if err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
			return
		}
	}
	os.Exit(m.Run())
}

// stubAgent starts one component unless an agent before it has, and ends on DownSignal.
func stubAgent() {
	term := make(chan os.Signal, 1)
	signal.Notify(term, DownSignal)
	fmt.Println("agent says hello")
	if _, err := os.Stat("/run/slipway/component.pid"); err != nil {
		cmd := exec.Command("/proc/self/exe", "component")
		cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			panic(err)
		}
		put("/run/slipway/component.pid", cmd.Process.Pid)
	}
	put("/run/slipway/agent.pid", os.Getpid())
	<-term
	put("/var/lib/slipway/stopped-in-order", 1)
}

func put(path string, n int) {
	if err := errors.Join(os.WriteFile(path+".new", []byte(strconv.Itoa(n)), 0o600), os.Rename(path+".new", path)); err != nil {
		panic(err)
	}
}

func newLocal(t *testing.T) *Local {
	t.Helper()
	if os.Getuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("a machine needs root: under CI the tests must have it")
		}
		t.Skip("a machine needs root")
	}
	runc := filepath.Join(bintest.Dir(t, "runc"), "runc")
	l, err := New(Config{Root: filepath.Join(t.TempDir(), "root"), Runc: runc, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		names, _ := l.Clusters()
		for _, n := range names {
			if err := l.Destroy(context.Background(), n); err != nil {
				t.Error(err)
			}
		}
	})
	return l
}

func ensure(t *testing.T, l *Local, s Spec) Change {
	t.Helper()
	change, err := l.Ensure(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return change
}

// await waits until a file of the run folder exists and differs from not.
func await(t *testing.T, l *Local, s Spec, file, not string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		data, err := os.ReadFile(filepath.Join(l.RunDir(s.Cluster, s.Name), file))
		if err == nil && string(data) != not {
			return string(data)
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s does not come: %q, %v%s", file, data, err, tail(l.folders(s.Cluster, s.Name).console()))
		case <-tick.C:
		}
	}
}

func run(t *testing.T, l *Local, s Spec, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	code, err := l.Exec(t.Context(), s.Cluster, s.Name, Command{Args: args, Stdout: &out, Stderr: &errs})
	if err != nil || code != 0 {
		t.Fatalf("%v: exit %d, %v: %s", args, code, err, errs.String())
	}
	return out.String()
}

func status(t *testing.T, l *Local, s Spec) Status {
	t.Helper()
	list, err := l.List(t.Context(), s.Cluster)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(list, func(st Status) bool { return st.Name == s.Name })
	if i < 0 {
		t.Fatalf("%s is not in %+v", s.Name, list)
	}
	return list[i]
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}
