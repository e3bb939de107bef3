// SPDX-License-Identifier: Apache-2.0

// Package apply_test creates clusters over SSH on existing machines with systemd and sshd, but without slipway.
package apply_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/testkit"
	"github.com/slipway-project/slipway/test/e2e/kit"
)

// site is an operator and the machines of a cluster.
type site struct {
	kit.Operator
	machines []*kit.Cluster
	controls int            // the first so many machines are control planes
	users    map[int]string // SSH users by machine; root by default
}

func newSite(t *testing.T, machines, controls int) site {
	t.Helper()
	c := kit.New(t, "apply")
	s := site{Operator: c.NewOperator(), controls: controls, users: map[int]string{}}
	for i := range machines {
		s.machines = append(s.machines, c.Bare(i, s.Public))
	}
	return s
}

// spec writes a spec of the site's machines, with more fields of spec, and returns its path.
func (s site) spec(more string) (file string) {
	s.T.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata: {name: far}\nspec:\n%s", more)
	if s.Form != "" {
		fmt.Fprintf(&b, "  controlPlane: {form: %s}\n", s.Form)
	}
	b.WriteString("  pools:\n")
	for i, m := range s.machines {
		switch i {
		case 0:
			b.WriteString("    - name: cp\n      roles: [control-plane]\n      machines:\n")
		case s.controls:
			b.WriteString("    - name: w\n      roles: [worker]\n      machines:\n")
		}
		login := ""
		if user := s.users[i]; user != "" {
			login = ", ssh: {user: " + user + "}"
		}
		fmt.Fprintf(&b, "        - {name: n%d, address: %s%s}\n", i, m.Address(), login)
	}
	file = s.Path("cluster.yaml")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		s.T.Fatal(err)
	}
	return file
}

// withoutLast returns the same site without its last machine.
func (s site) withoutLast() site {
	s.machines = s.machines[:len(s.machines)-1]
	return s
}

// exitPreflight is the exit code for machines that cannot become part of a cluster.
const exitPreflight = 4

// TestApplyStories applies a spec to three existing machines, first with problems, then with changes. SLIPWAY_E2E_APPLY=five uses five
// machines, three of them control planes, which takes two more minutes.
func TestApplyStories(t *testing.T) {
	machines, controls := 3, 1
	if os.Getenv("SLIPWAY_E2E_APPLY") == "five" {
		machines, controls = 5, 3
	}
	s := newSite(t, machines, controls)
	parts := []struct {
		name string
		run  func(t *testing.T, s site)
	}{
		{"unknown host keys", unknownHostKeys},
		{"a wrong host key", wrongHostKey},
		{"a user who is not root", notRoot},
		{"problems of two machines", twoProblems},
		{"an interrupted upload", interruptedUpload},
		{"apply again resumes the upload", ready},
		{"logs, and commands that do not work over SSH", logs},
		{"again", again},
		{"one more worker", oneMore},
		{"an agent whose program was replaced without a restart", oldAgent},
		{"an edited flag", editedFlag},
		{"down is refused", down},
	}
	for _, p := range parts {
		begun := time.Now()
		if !t.Run(p.name, func(t *testing.T) { p.run(t, s.of(t)) }) {
			return // each part continues from the end of the one before
		}
		t.Logf("%s: %.1f s", p.name, time.Since(begun).Seconds())
	}
}

// of returns the same site for a subtest.
func (s site) of(t *testing.T) site {
	out := site{Operator: s.Operator, controls: s.controls, users: s.users}
	out.Cluster = s.For(t)
	for _, m := range s.machines {
		out.machines = append(out.machines, m.For(t))
	}
	return out
}

// untouched fails the test if slipway has installed anything on a machine.
func (s site) untouched() {
	s.T.Helper()
	for _, m := range s.machines {
		if r := m.TryExec(nil, "systemctl cat slipway-agent.service || test -e /var/lib/slipway/state"); r.Code == 0 {
			s.T.Errorf("files of slipway on %s: want none, got %s", m.Node, r)
		}
	}
}

func (s site) refused(r kit.Result, want ...string) {
	s.T.Helper()
	if r.Code != exitPreflight {
		s.T.Fatalf("want exit code %d, got %s", exitPreflight, r)
	}
	for _, w := range want {
		if !strings.Contains(r.Err, w) {
			s.T.Errorf("want %q, got %s", w, r)
		}
	}
	s.untouched()
}

func unknownHostKeys(_ *testing.T, s site) {
	want := []string{fmt.Sprintf("%d machines cannot ", len(s.machines)), "--accept-new-host-keys"}
	for _, m := range s.machines {
		want = append(want, strings.Fields(m.Exec("ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub"))[1])
	}
	s.refused(s.Slipway("apply", "-f", s.spec(""), "--yes"), want...)
}

func wrongHostKey(_ *testing.T, s site) {
	pin := "SHA256:" + strings.Repeat("A", 43)
	s.refused(s.Slipway("apply", "-f", s.spec("  ssh: {hostKey: \""+pin+"\"}\n"), "--yes", "--accept-new-host-keys"),
		fmt.Sprintf("%d machines cannot ", len(s.machines)), "host key does not match", pin)
}

// twoProblems has one machine with a port in use and one that is unreachable; the others are fine. Both problems are reported.
func twoProblems(t *testing.T, s site) {
	s.machines[1].Exec("/usr/sbin/sshd -p 10250 -o PidFile=/run/squatter.pid")
	if r := s.Cluster.Slipway("machine", "cut", s.machines[2].Node); r.Code != 0 {
		t.Fatal(r)
	}
	file := s.spec("")
	r := s.Slipway("apply", "-f", file, "--yes", "--accept-new-host-keys", "--output", "json")
	s.refused(r, "2 machines cannot ", "n1 (", "ports are in use: 10250", "ss -ltnp", "n2 (")
	var got struct {
		Kind     string
		Machines []struct{ Machine string }
	}
	if err := json.Unmarshal([]byte(r.Out), &got); err != nil || got.Kind != "ApplyProblems" || len(got.Machines) != 2 || got.Machines[0].Machine != "n1" {
		t.Errorf("JSON output: got %+v, %v, want ApplyProblems of n1 and n2", got, err)
	}
	s.machines[1].Exec("kill $(cat /run/squatter.pid)")
	if r := s.Cluster.Slipway("machine", "heal", s.machines[2].Node); r.Code != 0 {
		t.Fatal(r)
	}
}

// notRoot uses an SSH user that cannot become root: all machines are reported at once. Where sudo is installed, the later parts log in to
// one machine as this user.
func notRoot(_ *testing.T, s site) {
	at := len(s.machines) - 2
	want := []string{fmt.Sprintf("%d machines cannot ", len(s.machines)), "slipway never asks for a password", "ann ALL=(ALL) NOPASSWD: ALL"}
	sudo := s.machines[at].TryExec(nil, "command -v sudo").Code == 0
	if sudo {
		want = append(want, "sudo asks user ann for a password")
	} else {
		want = append(want, "user ann is not root, and there is no sudo")
	}
	for _, m := range s.machines {
		m.ExecIn(strings.NewReader(s.Public), `set -e
useradd --create-home --password '*' --shell /bin/sh ann
mkdir -m 700 /home/ann/.ssh
cat >/home/ann/.ssh/authorized_keys
chown -R ann: /home/ann/.ssh`)
	}
	s.refused(s.Slipway("apply", "-f", s.spec("  ssh: {user: ann}\n"), "--yes", "--accept-new-host-keys"), want...)
	if sudo {
		s.machines[at].Exec("echo 'ann ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/slipway")
		s.users[at] = "ann"
	}
}

// interruptedUpload kills a machine's SSH server with all its sessions while a file is being uploaded.
func interruptedUpload(t *testing.T, s site) {
	s = s.withoutLast()
	r := s.Start("apply", "-f", s.spec(""), "--yes", "--accept-new-host-keys")
	testkit.Until(t, time.Minute, "part of a component is uploaded", func() error {
		list := "find " + blobs + " -name '.slipway-*.part' -size +1M -printf '%f %s\n'"
		got := s.machines[1].TryExec(nil, list)
		if incomplete(got.Out) { // not earlier: a server that is stopped during a login is killed by its sandbox
			got = s.machines[1].TryExec(nil, "pkill -STOP -x 'sshd|sshd-session'; "+list)
			if incomplete(got.Out) {
				return nil
			}
			s.machines[1].TryExec(nil, "pkill -CONT -x 'sshd|sshd-session'")
		}
		return fmt.Errorf("%s\noutput of apply:\n%s", got, r.Output())
	})
	s.machines[1].Exec("systemctl stop --no-block ssh.service; pkill -KILL -x 'sshd|sshd-session'")
	if err := r.Wait(); err == nil {
		t.Fatalf("apply without n1's SSH server: got success, want an error:\n%s", r.Output())
	}
	if !strings.Contains(r.Output(), "n1") {
		t.Errorf("apply without n1's SSH server: the output does not name n1:\n%s", r.Output())
	}
	s.machines[1].Exec("systemctl stop ssh.service; systemctl reset-failed ssh.service 2>/dev/null; systemctl start ssh.service; find " + blobs + " -name '.slipway-*.part' -size +1M | grep .")
}

// incomplete reports whether so much of a part is missing that the rest cannot be in a buffer.
func incomplete(list string) bool {
	name, size, _ := strings.Cut(strings.TrimSpace(list), " ")
	digest := strings.TrimSuffix(strings.TrimPrefix(name, ".slipway-"), ".part")
	whole, err := os.Stat(filepath.Join(kit.Root, "store/blobs/sha256", digest))
	have, wrong := strconv.ParseInt(size, 10, 64)
	return err == nil && wrong == nil && whole.Size()-have > 4<<20
}

// blobs is the directory of the component store on the machines, which also holds partial uploads.
const blobs = "/var/lib/slipway/store/blobs/sha256"

func ready(t *testing.T, s site) {
	s = s.withoutLast()
	r := s.Slipway("apply", "-f", s.spec(""), "--yes")
	if r.Code != 0 {
		t.Fatal(r)
	}
	if !regexp.MustCompile(`copy.* at \d+ of \d+ MiB`).MatchString(r.Err) {
		t.Errorf("apply again: want a resumed upload, got %s", r.Err)
	}
	if left := s.machines[1].Exec("find " + blobs + " -name '.slipway-*'"); left != "" {
		t.Errorf("temporary files in the store: got %s, want none", left)
	}
	s.ready(len(s.machines))
}

// ready fails the test unless the cluster is ready with this number of nodes.
func (s site) ready(nodes int) {
	s.T.Helper()
	if r := s.Slipway("status", "--name", "far"); r.Code != 0 || !strings.Contains(r.Out, "cluster far is ready") {
		s.T.Error(r)
	}
	r := s.Slipway("kubectl", "--name", "far", "get", "nodes", "--no-headers")
	if r.Code != 0 || strings.Count(r.Out, " Ready ") != nodes {
		s.T.Error(r)
	}
	if r := s.Slipway("node", "list", "--name", "far"); r.Code != 0 || !strings.Contains(r.Out, fmt.Sprintf("n%d", nodes-1)) {
		s.T.Error(r)
	}
}

func logs(t *testing.T, s site) {
	for component, want := range map[string]string{"kubelet": "kubelet", "agent": "slipway", "etcd": `"level":`} {
		if r := s.Slipway("logs", "--name", "far", "--machine", "n0", component, "--tail", "2000"); r.Code != 0 || !strings.Contains(r.Out, want) {
			t.Errorf("log of %s: want %q, got %s", component, want, r)
		}
	}
	if r := s.Slipway("logs", "--name", "far", "--machine", "n1", "kubelt"); r.Code == 0 || !strings.Contains(r.Err, "machine n1 has logs of ") || !strings.Contains(r.Err, "kubelet") {
		t.Errorf("log of an unknown component: want the components that there are, got %s", r)
	}
	address := s.machines[0].Address()
	if r := s.Slipway("exec", "--name", "far", "n0", "--", "ps", "ax"); r.Code == 0 || !strings.Contains(r.Err, "ssh root@"+address+" 'ps ax'") {
		t.Errorf("slipway exec: want an error with the ssh command, got %s", r)
	}
	if r := s.Slipway("machine", "stop", "n0", "--name", "far"); r.Code == 0 || !strings.Contains(r.Err, "ssh root@"+address) {
		t.Errorf("slipway machine stop: want an error with the ssh command, got %s", r)
	}
}

// processes returns the PIDs of the units of all machines, by machine and unit.
func (s site) processes() map[string]string {
	s.T.Helper()
	r := s.Slipway("status", "--name", "far", "--output", "json")
	var view struct {
		Machines []struct {
			Name string
			Node struct {
				Units []struct {
					Name    string
					PID     int64
					Oneshot bool
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(r.Out), &view); err != nil {
		s.T.Fatalf("%v: %s", err, r)
	}
	out := map[string]string{}
	for _, machine := range view.Machines {
		for _, u := range machine.Node.Units {
			if !u.Oneshot {
				out[machine.Name+" "+u.Name] = fmt.Sprint(u.PID)
			}
		}
	}
	if len(out) < 5 {
		s.T.Fatalf("processes: got %v, want at least 5", out)
	}
	return out
}

// again applies the same spec without --yes: there is nothing to confirm.
func again(t *testing.T, s site) {
	s = s.withoutLast()
	before := s.processes()
	r := s.Slipway("apply", "-f", s.spec(""))
	if r.Code != 0 || !strings.Contains(r.Out, "nothing to do") {
		t.Fatalf("apply of the same spec: want \"nothing to do\", got %s", r)
	}
	if diff := cmp.Diff(before, s.processes()); diff != "" {
		t.Errorf("processes (- before, + after):\n%s", diff)
	}
}

// oneMore adds the last machine to the spec. Nothing changes on the others.
func oneMore(t *testing.T, s site) {
	before := s.processes()
	last := fmt.Sprintf("n%d", len(s.machines)-1)
	if r := s.Slipway("apply", "-f", s.spec("")); r.Code == 0 || !strings.Contains(r.Err, last+" (") ||
		!strings.Contains(r.Err, fmt.Sprintf("%d more machines: nothing to do", len(s.machines)-1)) {
		t.Errorf("apply without --yes: want a question about %s only, got %s", last, r)
	}
	if r := s.Slipway("apply", "-f", s.spec(""), "--yes"); r.Code != 0 {
		t.Fatal(r)
	}
	s.ready(len(s.machines))
	after := s.processes()
	maps.DeleteFunc(after, func(unit, _ string) bool { return strings.HasPrefix(unit, last+" ") })
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("processes of the other machines (- before, + after):\n%s", diff)
	}
}

// oldAgent has an agent that runs an older program than the file on its disk, as after an apply that was interrupted between the two steps.
func oldAgent(t *testing.T, s site) {
	processes := s.processes()
	m := s.machines[1]
	const started = "systemctl show --property ExecMainStartTimestampMonotonic slipway-agent.service"
	m.Exec(`set -e
cd /opt/slipway/bin
cp -p slipway right; cp -p slipway wrong; echo >>wrong
mv wrong slipway; systemctl restart slipway-agent.service; mv right slipway`)
	before := m.Exec(started)
	if r := s.Slipway("apply", "-f", s.spec("")); r.Code == 0 || !strings.Contains(r.Err, "which runs an earlier program") || strings.Contains(r.Err, "n0 (") {
		t.Errorf("apply without --yes: want a question about n1's agent only, got %s", r)
	}
	if now := m.Exec(started); now != before {
		t.Errorf("start of the agent without --yes: got %s, want %s as before", now, before)
	}
	if r := s.Slipway("apply", "-f", s.spec(""), "--yes"); r.Code != 0 {
		t.Fatal(r)
	}
	if m.Exec(started) == before {
		t.Error("apply --yes has not restarted the agent")
	}
	m.Exec("cmp /opt/slipway/bin/slipway /proc/$(systemctl show --property MainPID --value slipway-agent.service)/exe")
	if diff := cmp.Diff(processes, s.processes()); diff != "" {
		t.Errorf("processes (- before, + after):\n%s", diff)
	}
	if r := s.Slipway("apply", "-f", s.spec("")); r.Code != 0 || !strings.Contains(r.Out, "nothing to do") {
		t.Errorf("apply again: want \"nothing to do\", got %s", r)
	}
}

func editedFlag(t *testing.T, s site) {
	before := s.processes()
	edited := s.spec("  components: {scheduler: {flags: {leader-elect-renew-deadline: 9s}}}\n")
	if r := s.Slipway("apply", "-f", edited); r.Code == 0 || !strings.Contains(r.Err, "kube-scheduler") || strings.Contains(r.Err, fmt.Sprintf("n%d (", len(s.machines)-1)) {
		t.Errorf("apply without --yes: want a question about control planes only, got %s", r)
	}
	if r := s.Slipway("apply", "-f", edited, "--yes"); r.Code != 0 {
		t.Fatal(r)
	}
	after := s.processes()
	for unit, pid := range after {
		if changed := pid != before[unit]; changed != strings.HasSuffix(unit, " kube-scheduler") {
			t.Errorf("PID of %s: got %s, was %s; want only kube-scheduler restarted", unit, pid, before[unit])
		}
	}
}

func down(t *testing.T, s site) {
	r := s.Slipway("down", "--name", "far")
	if r.Code == 0 || !strings.Contains(r.Err, "slipway node reset") {
		t.Errorf("down of machines that slipway has not created: want a refusal, got %s", r)
	}
	if r := s.Slipway("up", "--name", "far"); r.Code == 0 || !strings.Contains(r.Err, "slipway apply") {
		t.Errorf("up of machines that slipway has not created: want a refusal, got %s", r)
	}
	if r := s.Slipway("status", "--name", "far"); r.Code != 0 {
		t.Error(r)
	}
}
