// SPDX-License-Identifier: Apache-2.0

// Package apply_test makes clusters of machines that exist: systemd as first process, a real sshd, nothing of slipway.
package apply_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/testkit"
	"github.com/slipway-project/slipway/test/e2e/kit"
)

// site is an operator and some machines.
type site struct {
	kit.Operator
	machines []*kit.Cluster
	controls int            // so many of them, the first ones, are control planes
	users    map[int]string // who logs in there; root where nobody is named
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

// spec writes a cluster of the site's machines. More is added below spec.
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

// without is the same site before its last machine was bought.
func (s site) without() site {
	s.machines = s.machines[:len(s.machines)-1]
	return s
}

// exitPreflight is what scripts go by.
const exitPreflight = 4

// TestApplyStories is the life of a cluster of three machines that exist, from what is wrong with them on. SLIPWAY_E2E_APPLY=five makes
// it five, three of them control planes, which takes two minutes more.
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
		{"a copy that breaks off", brokenCopy},
		{"it goes on, to ready", ready},
		{"logs, and what is not done over SSH", logs},
		{"again", again},
		{"one worker more", oneMore},
		{"an agent that was exchanged, and not begun anew", oldAgent},
		{"an edited flag", editedFlag},
		{"what is not ours is not deleted", down},
	}
	for _, p := range parts {
		begun := time.Now()
		if !t.Run(p.name, func(t *testing.T) { p.run(t, s.of(t)) }) {
			return // each goes on from where the one before has ended
		}
		t.Logf("%s: %.1f s", p.name, time.Since(begun).Seconds())
	}
}

// of is the same site for a part of the test.
func (s site) of(t *testing.T) site {
	out := site{Operator: s.Operator, controls: s.controls, users: s.users}
	out.Cluster = s.For(t)
	for _, m := range s.machines {
		out.machines = append(out.machines, m.For(t))
	}
	return out
}

// untouched fails when anything of slipway's runs on a machine.
func (s site) untouched() {
	s.T.Helper()
	for _, m := range s.machines {
		if r := m.TryExec(nil, "systemctl cat slipway-agent.service || test -e /var/lib/slipway/state"); r.Code == 0 {
			s.T.Errorf("%s has been made something of: %s", m.Node, r)
		}
	}
}

func (s site) refused(r kit.Result, want ...string) {
	s.T.Helper()
	if r.Code != exitPreflight {
		s.T.Fatalf("want exit code %d: %s", exitPreflight, r)
	}
	for _, w := range want {
		if !strings.Contains(r.Err, w) {
			s.T.Errorf("it does not say %q: %s", w, r)
		}
	}
	s.untouched()
}

func unknownHostKeys(_ *testing.T, s site) {
	want := []string{fmt.Sprintf("%d machines cannot become part of the cluster", len(s.machines)), "--accept-new-host-keys"}
	for _, m := range s.machines {
		want = append(want, strings.Fields(m.Exec("ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub"))[1])
	}
	s.refused(s.Slipway("apply", "-f", s.spec(""), "--yes"), want...)
}

func wrongHostKey(_ *testing.T, s site) {
	pin := "SHA256:" + strings.Repeat("A", 43)
	s.refused(s.Slipway("apply", "-f", s.spec("  ssh: {hostKey: \""+pin+"\"}\n"), "--yes", "--accept-new-host-keys"),
		fmt.Sprintf("%d machines cannot become part", len(s.machines)), "host key does not match", pin)
}

// twoProblems: one machine has a port taken, another cannot be reached, the third is well. Both are told.
func twoProblems(t *testing.T, s site) {
	s.machines[1].Exec("/usr/sbin/sshd -p 10250 -o PidFile=/run/squatter.pid")
	if r := s.Cluster.Slipway("machine", "cut", s.machines[2].Node); r.Code != 0 {
		t.Fatal(r)
	}
	file := s.spec("")
	r := s.Slipway("apply", "-f", file, "--yes", "--accept-new-host-keys", "--output", "json")
	s.refused(r, "2 machines cannot become part", "n1 (", "ports are taken: 10250", "ss -ltnp", "n2 (")
	var said struct {
		Kind     string
		Machines []struct{ Machine string }
	}
	if err := json.Unmarshal([]byte(r.Out), &said); err != nil || said.Kind != "ApplyProblems" || len(said.Machines) != 2 || said.Machines[0].Machine != "n1" {
		t.Errorf("for programs: %+v, %v", said, err)
	}
	s.machines[1].Exec("kill $(cat /run/squatter.pid)")
	if r := s.Cluster.Slipway("machine", "heal", s.machines[2].Node); r.Code != 0 {
		t.Fatal(r)
	}
}

// notRoot: all machines are told of at once where the user may not become root. From then on that user logs in to one of them, where
// sudo is installed.
func notRoot(_ *testing.T, s site) {
	at := len(s.machines) - 2
	want := []string{fmt.Sprintf("%d machines cannot become part", len(s.machines)), "slipway never asks for a password", "ann ALL=(ALL) NOPASSWD: ALL"}
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

// brokenCopy: a machine's SSH server ends with all its sessions while it has part of a file.
func brokenCopy(t *testing.T, s site) {
	s = s.without()
	r := s.Start("apply", "-f", s.spec(""), "--yes", "--accept-new-host-keys")
	testkit.Until(t, time.Minute, "a component is half there", func() error {
		list := "find " + parts + " -name '.slipway-*.part' -size +1M -printf '%f %s\n'"
		got := s.machines[1].TryExec(nil, list)
		if halfThere(got.Out) { // not before: a server that is stopped while somebody logs in is killed by its own sandbox
			got = s.machines[1].TryExec(nil, "pkill -STOP -x 'sshd|sshd-session'; "+list)
			if halfThere(got.Out) {
				return nil
			}
			s.machines[1].TryExec(nil, "pkill -CONT -x 'sshd|sshd-session'")
		}
		return fmt.Errorf("%s\nit says:\n%s", got, r.Output())
	})
	s.machines[1].Exec("systemctl stop --no-block ssh.service; pkill -KILL -x 'sshd|sshd-session'")
	if err := r.Wait(); err == nil {
		t.Fatalf("it did not mind:\n%s", r.Output())
	}
	if !strings.Contains(r.Output(), "n1") {
		t.Errorf("it does not say which machine was lost:\n%s", r.Output())
	}
	s.machines[1].Exec("systemctl stop ssh.service; systemctl reset-failed ssh.service 2>/dev/null; systemctl start ssh.service; find " + parts + " -name '.slipway-*.part' -size +1M | grep .")
}

// halfThere tells whether of a part so much is missing that it cannot be on the way any more.
func halfThere(list string) bool {
	name, size, _ := strings.Cut(strings.TrimSpace(list), " ")
	digest := strings.TrimSuffix(strings.TrimPrefix(name, ".slipway-"), ".part")
	whole, err := os.Stat(filepath.Join(kit.Root, "store/blobs/sha256", digest))
	have, wrong := strconv.ParseInt(size, 10, 64)
	return err == nil && wrong == nil && whole.Size()-have > 4<<20
}

// parts is where they wait for their rest.
const parts = "/var/lib/slipway/store/blobs/sha256"

func ready(t *testing.T, s site) {
	s = s.without()
	r := s.Slipway("apply", "-f", s.spec(""), "--yes")
	if r.Code != 0 {
		t.Fatal(r)
	}
	if !strings.Contains(r.Err, "goes on where a copy broke off") {
		t.Errorf("it copied again what was there: %s", r.Err)
	}
	if left := s.machines[1].Exec("find " + parts + " -name '.slipway-*'"); left != "" {
		t.Errorf("left over: %s", left)
	}
	s.ready(len(s.machines))
}

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
			t.Errorf("log of %s: %s", component, r)
		}
	}
	if r := s.Slipway("logs", "--name", "far", "--machine", "n1", "kubelt"); r.Code == 0 || !strings.Contains(r.Err, "machine n1 has logs of ") || !strings.Contains(r.Err, "kubelet") {
		t.Errorf("a component that is not there: %s", r)
	}
	address := s.machines[0].Address()
	if r := s.Slipway("exec", "--name", "far", "n0", "--", "ps", "ax"); r.Code == 0 || !strings.Contains(r.Err, "ssh root@"+address+" 'ps ax'") {
		t.Errorf("exec: %s", r)
	}
	if r := s.Slipway("machine", "stop", "n0", "--name", "far"); r.Code == 0 || !strings.Contains(r.Err, "ssh root@"+address) {
		t.Errorf("machine stop: %s", r)
	}
}

// processes are the components of all machines: machine and unit → PID in the machine.
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
		s.T.Fatalf("only %d processes: %v", len(out), out)
	}
	return out
}

func again(t *testing.T, s site) {
	s = s.without()
	before := s.processes()
	r := s.Slipway("apply", "-f", s.spec(""))
	if r.Code != 0 || !strings.Contains(r.Out, "nothing to do") {
		t.Fatalf("without --yes, for there is nothing to ask: %s", r)
	}
	if after := s.processes(); !maps.Equal(before, after) {
		t.Errorf("before %v\nafter  %v", before, after)
	}
}

// oneMore: the spec gets the last machine, and nothing else is touched.
func oneMore(t *testing.T, s site) {
	before := s.processes()
	last := fmt.Sprintf("n%d", len(s.machines)-1)
	if r := s.Slipway("apply", "-f", s.spec("")); r.Code == 0 || !strings.Contains(r.Err, last+" (") ||
		!strings.Contains(r.Err, fmt.Sprintf("%d more machines: nothing to do", len(s.machines)-1)) {
		t.Errorf("it asks, and would make something of %s only: %s", last, r)
	}
	if r := s.Slipway("apply", "-f", s.spec(""), "--yes"); r.Code != 0 {
		t.Fatal(r)
	}
	s.ready(len(s.machines))
	after := s.processes()
	maps.DeleteFunc(after, func(unit, _ string) bool { return strings.HasPrefix(unit, last+" ") })
	if !maps.Equal(before, after) {
		t.Errorf("before %v\nafter  %v", before, after)
	}
}

// oldAgent: an apply broke off when it had exchanged a machine's program, and the agent had not begun anew.
func oldAgent(t *testing.T, s site) {
	before := s.processes()
	m := s.machines[1]
	const begun = "systemctl show --property ExecMainStartTimestampMonotonic slipway-agent.service"
	m.Exec(`set -e
cd /opt/slipway/bin
cp -p slipway right; cp -p slipway wrong; echo >>wrong
mv wrong slipway; systemctl restart slipway-agent.service; mv right slipway`)
	was := m.Exec(begun)
	if r := s.Slipway("apply", "-f", s.spec("")); r.Code == 0 || !strings.Contains(r.Err, "starts its agent anew") || strings.Contains(r.Err, "n0 (") {
		t.Errorf("it asks, and would start n1's agent only: %s", r)
	}
	if m.Exec(begun) != was {
		t.Error("it was started before anybody said yes")
	}
	if r := s.Slipway("apply", "-f", s.spec(""), "--yes"); r.Code != 0 {
		t.Fatal(r)
	}
	if m.Exec(begun) == was {
		t.Error("the earlier program runs on")
	}
	m.Exec("cmp /opt/slipway/bin/slipway /proc/$(systemctl show --property MainPID --value slipway-agent.service)/exe")
	if after := s.processes(); !maps.Equal(before, after) {
		t.Errorf("before %v\nafter  %v", before, after)
	}
	if r := s.Slipway("apply", "-f", s.spec("")); r.Code != 0 || !strings.Contains(r.Out, "nothing to do") {
		t.Error(r)
	}
}

func editedFlag(t *testing.T, s site) {
	before := s.processes()
	edited := s.spec("  components: {scheduler: {flags: {leader-elect-renew-deadline: 9s}}}\n")
	if r := s.Slipway("apply", "-f", edited); r.Code == 0 || !strings.Contains(r.Err, "kube-scheduler") || strings.Contains(r.Err, fmt.Sprintf("n%d (", len(s.machines)-1)) {
		t.Errorf("it asks, and would change control planes only: %s", r)
	}
	if r := s.Slipway("apply", "-f", edited, "--yes"); r.Code != 0 {
		t.Fatal(r)
	}
	after := s.processes()
	for unit, pid := range after {
		if changed := pid != before[unit]; changed != strings.HasSuffix(unit, " kube-scheduler") {
			t.Errorf("%s: PID %s before, %s after", unit, before[unit], pid)
		}
	}
}

func down(t *testing.T, s site) {
	r := s.Slipway("down", "--name", "far")
	if r.Code == 0 || !strings.Contains(r.Err, "slipway node reset") {
		t.Errorf("it took down machines that are not slipway's: %s", r)
	}
	if r := s.Slipway("up", "--name", "far"); r.Code == 0 || !strings.Contains(r.Err, "slipway apply") {
		t.Errorf("up: %s", r)
	}
	if r := s.Slipway("status", "--name", "far"); r.Code != 0 {
		t.Error(r)
	}
}
