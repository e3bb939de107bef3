// SPDX-License-Identifier: Apache-2.0

package ssh

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/core/config"
	coremachine "github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/preflight"
	"github.com/slipway-project/slipway/internal/sshhost"
)

func healthy(name string, last byte) *Probe {
	a := netip.AddrFrom4([4]byte{192, 0, 2, last})
	return &Probe{
		Node:   config.NodeName{Name: name, Address: a},
		Report: preflight.Report{Slipway: "dev", Facts: coremachine.Facts{MachineID: "id-" + name}, Addresses: []string{"10.0.0.1", a.String()}, Lock: string(lock.Free)},
	}
}

func TestProbeJudges(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(p *Probe)
		want   string // of the only problem; empty: none
	}{
		"a healthy machine":      {func(*Probe) {}, ""},
		"another address":        {func(p *Probe) { p.Report.Addresses = []string{"192.0.2.9"} }, "does not have the address 192.0.2.1"},
		"a clock ahead":          {func(p *Probe) { p.skew = time.Hour }, "differs from this computer's by 1h0m0s"},
		"a clock behind":         {func(p *Probe) { p.skew = -time.Minute }, "differs from this computer's by -1m0s"},
		"a clock near":           {func(p *Probe) { p.skew = 5 * time.Second }, ""},
		"our own node":           {func(p *Probe) { p.Report.Lock, p.Report.Node = string(lock.Committed), "a" }, ""},
		"another cluster's node": {func(p *Probe) { p.Report.Lock, p.Report.Node, p.Report.Cluster = string(lock.Committed), "x", "c1" }, "node x of cluster c1"},
		"its own findings": {func(p *Probe) {
			p.Report.Findings = []preflight.Finding{{Severity: preflight.Warning, What: "w"}, {Severity: preflight.Problem, What: "no nft"}}
		}, "no nft"},
	} {
		p := healthy("a", 1)
		tc.change(p)
		p.judge()
		switch {
		case tc.want == "" && len(p.problems) > 0:
			t.Errorf("%s: %+v", name, p.problems)
		case tc.want != "" && (len(p.problems) != 1 || !strings.Contains(p.problems[0].What, tc.want)):
			t.Errorf("%s: %+v, want %q", name, p.problems, tc.want)
		}
	}
}

func TestCompareFindsWhatMachinesMustNotShare(t *testing.T) {
	t.Parallel()
	all := []*Probe{healthy("a", 1), healthy("b", 2), healthy("c", 3), healthy("d", 4)}
	all[1].Report.Facts.MachineID = all[0].Report.Facts.MachineID
	all[2].Report.Lock, all[2].Report.Cluster = string(lock.Committed), "c1"
	all[3].Report.Lock, all[3].Report.Cluster = string(lock.Committed), "c2"
	compare(all)
	for i, want := range []string{"", "the same machine id as a", "in cluster c1", "in cluster c2"} {
		p := all[i]
		if want == "" && len(p.problems) > 0 || want != "" && (len(p.problems) != 1 || !strings.Contains(p.problems[0].What, want)) {
			t.Errorf("%s: %+v, want %q", p.Node.Name, p.problems, want)
		}
	}
	unasked := []*Probe{{}, {}}
	compare(unasked) // whether machines that were not reached are the same is unknown
	if len(unasked[1].problems) > 0 {
		t.Errorf("%+v", unasked[1].problems)
	}
}

// All machines are reported together, each with all its problems.
func TestProblemsTellEverything(t *testing.T) {
	t.Parallel()
	text := Problems{
		{"a", "192.0.2.1", []preflight.Finding{{What: "one", Remedy: "do this"}, {What: "two", Detail: "because"}}},
		{"b", "192.0.2.2", []preflight.Finding{{What: "three"}}},
	}.Error()
	for _, want := range []string{"2 machines", "a (192.0.2.1)", "one", "remedy: do this", "two", "because", "b (192.0.2.2)", "three"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
}

func TestWhyNotRoot(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		user  string
		err   error
		id    string
		wants []string
	}{
		"a password":   {"ann", &sshhost.ExitError{Code: 1, Stderr: "sudo: a password is required\n"}, "root", []string{"sudo asks user ann for a password", "ann ALL=(ALL) NOPASSWD: ALL"}},
		"no sudo":      {"ann", &sshhost.ExitError{Code: 127, Stderr: "sh: 1: exec: sudo: not found\n"}, "root", []string{"there is no sudo", "install sudo", "log in as root"}},
		"a terminal":   {"ann", &sshhost.ExitError{Code: 1, Stderr: "sudo: sorry, you must have a tty to run sudo\n"}, "root", []string{"only with a terminal", "Defaults:ann !requiretty"}},
		"no sudoer":    {"ann", &sshhost.ExitError{Code: 1, Stderr: "ann is not in the sudoers file."}, "root", []string{"may not become root: ann is not in the sudoers file", "NOPASSWD"}},
		"root already": {"root", &sshhost.ExitError{Code: 127, Stderr: "uname: not found"}, "shell", []string{"uname: not found"}},
		"a lost line":  {"ann", errors.New("run on m: EOF"), "shell", []string{"EOF"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &Probe{}
			p.noRoot(&sshhost.Host{Target: sshhost.Target{User: tc.user}}, fmt.Errorf("run on m: %w", tc.err))
			if len(p.problems) != 1 || p.problems[0].ID != tc.id {
				t.Fatalf("problems %+v", p.problems)
			}
			text := fmt.Sprintf("%+v", p.problems[0])
			for _, want := range tc.wants {
				if !strings.Contains(text, want) {
					t.Errorf("no %q in %s", want, text)
				}
			}
		})
	}
}
