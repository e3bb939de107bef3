// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/backend/pods"
	"github.com/slipway-project/slipway/internal/core/plan"
)

const text = "kind: Pod\nmetadata:\n  uid: '" + plan.PodUID + "'\n  annotations: {hash: '" + plan.PodInputs + "'}\n"

func etcd() plan.StaticPod {
	return plan.StaticPod{Name: "etcd", Component: true, Manifest: text, Ready: plan.Probe{Kind: plan.ProbeTCP, Address: "127.0.0.1:2379"}}
}

// Each content is a pod of its own, and the same content the same pod.
func TestManifestFollowsContent(t *testing.T) {
	t.Parallel()
	base := pods.NewManifest(etcd(), []string{"cert 1"})
	if again := pods.NewManifest(etcd(), []string{"cert 1"}); again != base {
		t.Errorf("the same content gave two manifests:\n%s", cmp.Diff(base, again))
	}
	edited := etcd()
	edited.Manifest += "# another flag\n"
	for name, other := range map[string]pods.Manifest{
		"another input":    pods.NewManifest(etcd(), []string{"cert 2"}),
		"one input more":   pods.NewManifest(etcd(), []string{"cert 1", ""}),
		"another manifest": pods.NewManifest(edited, []string{"cert 1"}),
	} {
		if other.UID == base.UID || other.Text == base.Text {
			t.Errorf("%s: got the same pod, want a different one", name)
		}
	}
	if len(base.UID) != 32 || pods.UIDOf(base.Text) != base.UID || strings.Contains(base.Text, "{{") {
		t.Errorf("got UID %q in\n%s", base.UID, base.Text)
	}
	if user := pods.NewManifest(plan.StaticPod{Name: "web", Manifest: "kind: Pod\n"}, nil); user.UID != "" || !strings.HasSuffix(user.Text, "kind: Pod\n") {
		t.Errorf("a user's pod was changed: %+v", user)
	}
}

func TestOurs(t *testing.T) {
	t.Parallel()
	ours := pods.NewManifest(etcd(), nil).Text
	for name, tc := range map[string]struct {
		text       string
		ours, same bool
	}{
		"as written": {ours, true, true}, "changed": {ours + "#\n", true, false}, "of someone else": {"kind: Pod\n", false, false}, "empty": {"", false, false},
	} {
		if o, s := pods.WrittenBySlipway(tc.text); o != tc.ours || s != tc.same {
			t.Errorf("%s: got written %t, unchanged %t", name, o, s)
		}
	}
}

// machine is a fake /proc and /var/log/pods.
type machine struct {
	t          *testing.T
	proc, logs string
	mu         sync.Mutex
	answer     error
	events     []string
}

func newMachine(t *testing.T) (*machine, *pods.Manager) {
	m := &machine{t: t, proc: t.TempDir(), logs: t.TempDir()}
	return m, pods.New(pods.Config{Probe: m, Proc: m.proc, Logs: m.logs, OnEvent: func(e pods.Event) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.events = append(m.events, fmt.Sprintf("%s ready=%t %s", e.Pod, e.Ready, e.Detail))
	}})
}

func (m *machine) Ask(context.Context, plan.Probe) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.answer
}

func (m *machine) says(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.answer = err
}

func (m *machine) heard() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.events
}

func (m *machine) runs(pid int, comm, uid string) {
	m.t.Helper()
	m.write(filepath.Join(m.proc, fmt.Sprint(pid), "cgroup"), "0::/kubepods/burstable/pod"+uid+"/c\n")
	m.write(filepath.Join(m.proc, fmt.Sprint(pid), "stat"), fmt.Sprintf("%d (%s) S%s %d 0\n", pid, comm, strings.Repeat(" 0", 18), 100*pid))
}

func (m *machine) ends(pid int) {
	m.t.Helper()
	if err := os.RemoveAll(filepath.Join(m.proc, fmt.Sprint(pid))); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) write(path, text string) {
	m.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) want(k *pods.Manager, ready bool, reason string) {
	m.t.Helper()
	have, why, err := k.State(m.t.Context(), "etcd")
	if err != nil || have != ready || !strings.Contains(why, reason) {
		m.t.Errorf("got ready %t, %q, %v; want %t, %q", have, why, err, ready, reason)
	}
}

// A pod is not ready before its own component runs, even if another process answers the probe.
func TestReadyIsThisPod(t *testing.T) {
	t.Parallel()
	m, k := newMachine(t)
	now := pods.NewManifest(etcd(), nil).UID
	k.Track(etcd(), now)
	m.runs(10, "etcd", strings.Repeat("0", 32)) // the previous pod still answers
	m.want(k, false, "has not started it yet")
	m.runs(11, "pause", now)
	m.want(k, false, "has not started it yet")
	m.runs(12, "etcd", now)
	m.says(errors.New("connection refused"))
	m.want(k, false, "connection refused")
	m.says(nil)
	m.want(k, true, "")
	m.ends(12)
	m.write(filepath.Join(m.logs, "kube-system_etcd-n_"+now, "etcd", "0.log"), "2026-01-01T00:00:00Z stderr F no space left on device\n")
	m.want(k, false, "last output: no space left on device")
	k.Track(etcd(), strings.Repeat("1", 32)) // another manifest: the old pod is ignored
	m.want(k, false, "has not started it yet")
}

func TestStatus(t *testing.T) {
	t.Parallel()
	m, k := newMachine(t)
	uid := pods.NewManifest(etcd(), nil).UID
	k.Track(etcd(), uid)
	m.write(filepath.Join(m.proc, "stat"), "cpu 1 2\nbtime 1000\n")
	m.runs(12, "etcd", uid)
	for n, said := range []string{"first words", "last words", "alive"} {
		m.write(filepath.Join(m.logs, "kube-system_etcd-n_"+uid, "etcd", fmt.Sprintf("%d.log", n)), "t stderr F "+said+"\n")
	}
	m.want(k, true, "")
	want := []pods.Status{{Name: "etcd", PID: 12, Since: time.Unix(1012, 0), Ready: true, Restarts: 2, LastOutput: "last words"}}
	if diff := cmp.Diff(want, k.Status()); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
}

// A pod that falls is signaled of within a second or two, one that does not answer after three questions; both when they are back.
func TestRunTellsOfFalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, k := newMachine(t)
		uid := pods.NewManifest(etcd(), nil).UID
		k.Track(etcd(), uid)
		m.runs(12, "etcd", uid)
		m.want(k, true, "")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- k.Run(ctx) }()

		m.ends(12)
		time.Sleep(1500 * time.Millisecond)
		m.runs(13, "etcd", uid)
		time.Sleep(1500 * time.Millisecond)
		m.says(errors.New("no answer within 1s"))
		time.Sleep(15 * time.Second)
		if n := len(m.heard()); n != 2 {
			t.Errorf("got events %q after one failed check, want none", m.heard())
		}
		time.Sleep(20 * time.Second)
		m.says(nil)
		time.Sleep(2 * time.Second)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		want := []string{
			"etcd ready=false the kubelet has not started it yet", "etcd ready=true ",
			"etcd ready=false waiting for 127.0.0.1:2379 to accept a connection: no answer within 1s", "etcd ready=true ",
		}
		if diff := cmp.Diff(want, m.heard()); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

// A kubelet that ignores a manifest is restarted once per interval, and not earlier.
func TestAwaitNudges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir, begun := t.TempDir(), time.Now()
		uid := pods.NewManifest(etcd(), nil).UID
		m := &machine{t: t, proc: dir}
		var nudged []time.Duration
		k := pods.New(pods.Config{Probe: m, Proc: dir, Logs: dir, RestartKubelet: func(context.Context) error {
			if nudged = append(nudged, time.Since(begun).Round(time.Minute)); len(nudged) == 2 {
				m.runs(7, "etcd", uid)
			}
			return nil
		}})
		k.Track(etcd(), uid)
		if err := k.Await(t.Context(), "etcd", func(string) {}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]time.Duration{2 * time.Minute, 4 * time.Minute}, nudged); diff != "" {
			t.Errorf("restarts of the kubelet (-want +got):\n%s", diff)
		}
	})
}
