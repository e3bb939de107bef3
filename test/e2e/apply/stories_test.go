// SPDX-License-Identifier: Apache-2.0

package apply_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/slipway-project/slipway/test/e2e/kit"
)

// exitPreflight is what scripts go by.
const exitPreflight = 4

// TestApplyStories is the life of a cluster of three machines that exist, from what is wrong with them on.
func TestApplyStories(t *testing.T) {
	s := newSite(t, 3)
	parts := []struct {
		name string
		run  func(t *testing.T, s site)
	}{
		{"unknown host keys", unknownHostKeys},
		{"a wrong host key", wrongHostKey},
		{"problems of two machines", twoProblems},
		{"a connection lost in the middle", lostConnection},
		{"from nothing to ready", ready},
		{"again", again},
		{"an edited flag", editedFlag},
		{"what is not ours is not deleted", down},
	}
	for _, p := range parts {
		if !t.Run(p.name, func(t *testing.T) { p.run(t, s.of(t)) }) {
			return // each goes on from where the one before has ended
		}
	}
}

// of is the same site for a part of the test.
func (s site) of(t *testing.T) site {
	out := site{Operator: s.Operator}
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
	want := []string{"3 machines cannot become part of the cluster", "--accept-new-host-keys"}
	for _, m := range s.machines {
		want = append(want, strings.Fields(m.Exec("ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub"))[1])
	}
	s.refused(s.Slipway("apply", "-f", s.spec(""), "--yes"), want...)
}

func wrongHostKey(_ *testing.T, s site) {
	pin := "SHA256:" + strings.Repeat("A", 43)
	s.refused(s.Slipway("apply", "-f", s.spec("  ssh: {hostKey: \""+pin+"\"}\n"), "--yes", "--accept-new-host-keys"),
		"3 machines cannot become part", "its host key is another", pin)
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

// lostConnection: a machine's SSH server ends with all its sessions while components are copied.
func lostConnection(t *testing.T, s site) {
	file := s.spec("")
	r := s.Start("apply", "-f", file, "--yes", "--accept-new-host-keys")
	kit.Until(t, time.Minute, "components are copied", func() error {
		if !strings.Contains(r.Said(), "n1: copy: copies components") {
			return fmt.Errorf("it says:\n%s", r.Said())
		}
		return nil
	})
	s.machines[1].Exec("systemctl stop ssh.service; pkill -x sshd || true")
	if err := r.Wait(); err == nil {
		t.Fatalf("it did not mind:\n%s", r.Said())
	}
	if !strings.Contains(r.Said(), "n1") {
		t.Errorf("it does not say which machine was lost:\n%s", r.Said())
	}
	s.machines[1].Exec("systemctl start ssh.service")
}

func ready(t *testing.T, s site) {
	r := s.Slipway("apply", "-f", s.spec(""), "--yes")
	if r.Code != 0 {
		t.Fatal(r)
	}
	if r := s.Slipway("status", "--name", "far"); r.Code != 0 || !strings.Contains(r.Out, "cluster far is ready") {
		t.Error(r)
	}
	nodes := s.Slipway("kubectl", "--name", "far", "get", "nodes", "--no-headers")
	if nodes.Code != 0 || strings.Count(nodes.Out, " Ready ") != 3 {
		t.Error(nodes)
	}
	if r := s.Slipway("node", "list", "--name", "far"); r.Code != 0 || !strings.Contains(r.Out, "n2") {
		t.Error(r)
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
	if len(out) < 10 {
		s.T.Fatalf("only %d processes: %v", len(out), out)
	}
	return out
}

func again(t *testing.T, s site) {
	before := s.processes()
	r := s.Slipway("apply", "-f", s.spec(""))
	if r.Code != 0 || !strings.Contains(r.Out, "nothing to do") {
		t.Fatalf("without --yes, for there is nothing to ask: %s", r)
	}
	if after := s.processes(); !maps.Equal(before, after) {
		t.Errorf("before %v\nafter  %v", before, after)
	}
}

func editedFlag(t *testing.T, s site) {
	before := s.processes()
	edited := s.spec("  components: {apiserver: {flags: {max-requests-inflight: 399}}}\n")
	if r := s.Slipway("apply", "-f", edited); r.Code == 0 || !strings.Contains(r.Err, "kube-apiserver") || strings.Contains(r.Err, "n1 (") {
		t.Errorf("it asks, and would change n0 only: %s", r)
	}
	if r := s.Slipway("apply", "-f", edited, "--yes"); r.Code != 0 {
		t.Fatal(r)
	}
	after := s.processes()
	for unit, pid := range after {
		if changed := pid != before[unit]; changed != (unit == "n0 kube-apiserver") {
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
