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
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/bintest"
)

func TestMachineLife(t *testing.T) {
	l := newLocal(t)
	s := Spec{Cluster: "life", Name: "life-1"}
	before := hostState(t, l)

	change := ensure(t, l, s)
	if diff := cmp.Diff(Change{Created: true, Started: true}, change); diff != "" {
		t.Errorf("first Ensure (-want +got):\n%s", diff)
	}
	agent := await(t, l, s, "agent.pid", "")
	if got := ensure(t, l, s); !got.None() {
		t.Errorf("second Ensure: got %+v, want no change", got)
	}
	if got := await(t, l, s, "agent.pid", ""); got != agent {
		t.Errorf("second Ensure restarted the agent: got pid %s, want %s", got, agent)
	}

	t.Run("inside", func(t *testing.T) { checkInside(t, l, s) })
	t.Run("agent dies", func(t *testing.T) {
		component := await(t, l, s, "component.pid", "")
		run(t, l, s, "kill", "-9", agent)
		agent = await(t, l, s, "agent.pid", agent)
		if parent := strings.Fields(run(t, l, s, "cat", "/proc/"+component+"/stat"))[3]; parent != "1" {
			t.Errorf("parent of component: got %s, want 1", parent)
		}
	})
	t.Run("agent is restarted on demand", func(t *testing.T) {
		if err := l.RestartAgent(t.Context(), s.Cluster, s.Name); err != nil {
			t.Fatal(err)
		}
		agent = await(t, l, s, "agent.pid", agent)
	})
	t.Run("power cut", func(t *testing.T) {
		run(t, l, s, "sh", "-c", "echo kept > /var/lib/kubelet/data; echo kept > /etc/own; ip netns add left; mount -t tmpfs x /var/lib/kubelet/pods 2>/dev/null || mkdir -p /var/lib/kubelet/pods && mount -t tmpfs x /var/lib/kubelet/pods")
		must(t, l.PowerCut(t.Context(), s.Cluster, s.Name))
		if st := status(t, l, s); st.Running {
			t.Errorf("after power cut: got %+v, want not running", st)
		}
		if got := ensure(t, l, s); got != (Change{Started: true}) {
			t.Errorf("Ensure after power cut: got %+v, want Started only", got)
		}
		await(t, l, s, "agent.pid", "")
		if got := run(t, l, s, "cat", "/var/lib/kubelet/data", "/etc/own"); got != "kept\nkept\n" {
			t.Errorf("data after power cut: got %q, want kept", got)
		}
	})
	t.Run("stop in order", func(t *testing.T) {
		must(t, l.Stop(t.Context(), s.Cluster, s.Name), l.Stop(t.Context(), s.Cluster, s.Name))
		if _, err := os.Stat(filepath.Join(l.DataDir(s.Cluster, s.Name, "slipway"), "stopped-in-order")); err != nil {
			t.Errorf("the agent got no DownSignal: %v", err)
		}
		if _, err := l.Exec(t.Context(), s.Cluster, s.Name, Command{Args: []string{"true"}}); !errors.Is(err, ErrNotRunning) {
			t.Errorf("exec in a stopped machine: got %v, want ErrNotRunning", err)
		}
		if _, err := l.Start(t.Context(), s.Cluster, s.Name); err != nil {
			t.Error(err)
		}
	})

	must(t, l.Destroy(t.Context(), s.Cluster), l.Destroy(t.Context(), s.Cluster))
	if diff := hostDiff(before, hostState(t, l)); diff != "" {
		t.Errorf("host changed (-want +got):\n%s", diff)
	}
}

// checkInside runs programs in the machine and checks what they see.
func checkInside(t *testing.T, l *Local, s Spec) {
	for name, tt := range map[string]struct{ script, want string }{
		"host name":           {"uname -n; cat /etc/hostname", s.Name + "\n" + s.Name + "\n"},
		"path and kubeconfig": {"echo $PATH $KUBECONFIG", PathInside + " /etc/kubernetes/admin.conf\n"},
		"sysctl reads":        {"cat /proc/sys/vm/overcommit_memory /proc/sys/kernel/panic", "1\n10\n"},
		"host data is hidden": {"ls /etc/kubernetes /var/lib/kubelet /var/lib/etcd /etc/cni /root", "/etc/cni:\n\n/etc/kubernetes:\n\n/root:\n\n/var/lib/etcd:\n\n/var/lib/kubelet:\n"},
		"store is read-only":  {"touch /var/lib/slipway/store/x 2>/dev/null || echo refused", "refused\n"},
		"no overlay below":    {"stat -f -c %T /var/lib/kubelet /var/lib/containerd | grep overlay; true", ""},
		"forwarding":          {"cat /proc/sys/net/ipv4/ip_forward", "1\n"},
		"agent log":           {"cat /var/log/slipway/agent.log", "agent says hello\n"},
		"cgroup root":         {"grep -v '/$' /proc/self/cgroup | grep -v '::/init$'; true", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, run(t, l, s, "sh", "-c", tt.script)); diff != "" {
				t.Error(diff)
			}
		})
	}
	t.Run("sysctl writes stay inside", func(t *testing.T) {
		const path = "/proc/sys/kernel/panic"
		host, _ := os.ReadFile(path)
		run(t, l, s, "sh", "-c", "echo 77 > "+path+"; grep -qx 77 "+path+"; echo 10 > "+path)
		if now, _ := os.ReadFile(path); !bytes.Equal(host, now) {
			t.Errorf("%s of the host: got %q, want %q", path, now, host)
		}
	})
	t.Run("cgroups are writable", func(t *testing.T) {
		run(t, l, s, "sh", "-c", "for d in /sys/fs/cgroup/cgroup.procs /sys/fs/cgroup/*/cgroup.procs; do [ -e $d ] && mkdir -p ${d%/*}/kubepods/pod1; done; true")
	})
	t.Run("exit code", func(t *testing.T) {
		code, err := l.Exec(t.Context(), s.Cluster, s.Name, Command{Args: []string{"sh", "-c", "exit 7"}})
		if code != 7 || err != nil {
			t.Errorf("got exit %d, %v; want 7", code, err)
		}
	})
}

// The test binary acts as slipway in the machines: PID 1, the agent, and a component that the agent
// starts.
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

// stubAgent starts one component, unless an earlier agent has, and exits on DownSignal.
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
			t.Fatal("local machines need root; tests under CI must run as root")
		}
		t.Skip("local machines need root")
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

// await waits until a file in the run directory exists and its content differs from not.
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
			t.Fatalf("wait for %s: got %q, %v%s", file, data, err, tail(l.paths(s.Cluster, s.Name).console()))
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
