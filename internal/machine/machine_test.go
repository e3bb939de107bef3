// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMachineLife(t *testing.T) {
	l := newLocal(t)
	s := Spec{Cluster: "life", Name: "life-1"}
	before := hostState(t, l)

	change := ensure(t, l, s)
	if diff := cmp.Diff(Change{Created: true, Started: true}, change); diff != "" {
		t.Errorf("first Ensure: %s", diff)
	}
	agent := await(t, l, s, "agent.pid", "")
	if got := ensure(t, l, s); !got.None() {
		t.Errorf("second Ensure changed something: %+v", got)
	}
	if got := await(t, l, s, "agent.pid", ""); got != agent {
		t.Errorf("second Ensure started the agent again: %s, was %s", got, agent)
	}

	t.Run("inside", func(t *testing.T) { checkInside(t, l, s) })
	t.Run("agent dies", func(t *testing.T) {
		component := await(t, l, s, "component.pid", "")
		run(t, l, s, "kill", "-9", agent)
		agent = await(t, l, s, "agent.pid", agent)
		if parent := strings.Fields(run(t, l, s, "cat", "/proc/"+component+"/stat"))[3]; parent != "1" {
			t.Errorf("component's parent is %s, want 1", parent)
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
			t.Errorf("still running: %+v", st)
		}
		if got := ensure(t, l, s); got != (Change{Started: true}) {
			t.Errorf("Ensure after power cut: %+v", got)
		}
		await(t, l, s, "agent.pid", "")
		if got := run(t, l, s, "cat", "/var/lib/kubelet/data", "/etc/own"); got != "kept\nkept\n" {
			t.Errorf("data after power cut: %q", got)
		}
	})
	t.Run("stop in order", func(t *testing.T) {
		must(t, l.Stop(t.Context(), s.Cluster, s.Name), l.Stop(t.Context(), s.Cluster, s.Name))
		if _, err := os.Stat(filepath.Join(l.DataDir(s.Cluster, s.Name, "slipway"), "stopped-in-order")); err != nil {
			t.Errorf("the agent was not asked to stop: %v", err)
		}
		if _, err := l.Exec(t.Context(), s.Cluster, s.Name, Command{Args: []string{"true"}}); !errors.Is(err, ErrNotRunning) {
			t.Errorf("exec in a stopped machine: %v", err)
		}
		if _, err := l.Start(t.Context(), s.Cluster, s.Name); err != nil {
			t.Error(err)
		}
	})

	must(t, l.Destroy(t.Context(), s.Cluster), l.Destroy(t.Context(), s.Cluster))
	if diff := hostDiff(before, hostState(t, l)); diff != "" {
		t.Errorf("the host has changed: %s", diff)
	}
}

// checkInside asks the machine what it sees.
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
			t.Errorf("host's %s is %q, was %q", path, now, host)
		}
	})
	t.Run("cgroups are writable", func(t *testing.T) {
		run(t, l, s, "sh", "-c", "for d in /sys/fs/cgroup/cgroup.procs /sys/fs/cgroup/*/cgroup.procs; do [ -e $d ] && mkdir -p ${d%/*}/kubepods/pod1; done; true")
	})
	t.Run("exit code", func(t *testing.T) {
		code, err := l.Exec(t.Context(), s.Cluster, s.Name, Command{Args: []string{"sh", "-c", "exit 7"}})
		if code != 7 || err != nil {
			t.Errorf("%d, %v; want 7", code, err)
		}
	})
}
