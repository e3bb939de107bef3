// SPDX-License-Identifier: Apache-2.0

package ssh

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/preflight"
	"github.com/slipway-project/slipway/internal/report"
	"github.com/slipway-project/slipway/internal/sshhost"
)

// Probe is what is known of a machine before anything is changed on it.
type Probe struct {
	Node     config.NodeName
	Pool     config.Pool
	Report   preflight.Report
	Replaces bool // this slipway is not installed there yet
	Outdated bool // the agent runs with another program or unit than the installed ones

	skew     time.Duration // its clock minus this computer's
	problems []preflight.Finding
}

// Problems is everything that keeps machines from becoming nodes. It comes in a report.Error of kind Preflight.
type Problems []MachineProblem

// MachineProblem is what is wrong with one machine.
type MachineProblem struct {
	Machine  string              `json:"machine"`
	Address  string              `json:"address"`
	Findings []preflight.Finding `json:"findings"`
}

// Error has a paragraph for each machine.
func (e Problems) Error() string {
	lines := []string{report.Count(len(e), "machine") + " cannot join the cluster; no machine has been changed:"}
	for _, m := range e {
		lines = append(lines, fmt.Sprintf("  %s (%s):", m.Machine, m.Address))
		for _, f := range m.Findings {
			lines = append(lines, "    "+f.What)
			if f.Detail != "" {
				lines = append(lines, "      "+f.Detail)
			}
			if f.Remedy != "" {
				lines = append(lines, "      remedy: "+f.Remedy)
			}
		}
	}
	return strings.Join(lines, "\n")
}

// Probe examines all machines of the pools at once. It uploads this program, which does the examination there, and changes
// nothing else. The problems of all machines are returned together, as [Problems].
func (m *Machines) Probe(ctx context.Context, pools []config.Pool, to report.Func) ([]*Probe, error) {
	var all []*Probe
	for _, pool := range pools {
		for _, n := range pool.Nodes {
			all = append(all, &Probe{Node: n, Pool: pool})
		}
	}
	group, probing := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for _, p := range all {
		group.Go(func() error {
			m.probe(probing, p, to)
			return probing.Err()
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	compare(all)
	var problems Problems
	for _, p := range all {
		if len(p.problems) > 0 {
			problems = append(problems, MachineProblem{p.Node.Name, p.Node.Address.String(), p.problems})
		}
	}
	if len(problems) > 0 {
		return nil, &report.Error{Kind: report.Preflight, Err: problems}
	}
	return all, nil
}

func (p *Probe) problem(id, what, detail, remedy string) {
	p.problems = append(p.problems, preflight.Finding{ID: id, Severity: preflight.Problem, What: what, Detail: detail, Remedy: remedy})
}

// probe examines one machine, beginning with what requires least of it. It stops at a problem that makes the rest impossible.
func (m *Machines) probe(ctx context.Context, p *Probe, to report.Func) {
	h := m.sshHost(p.Node.Name)
	to(report.Event{Stage: report.StagePreflight, Machine: p.Node.Name, Phase: "look", Text: "checking the machine"})
	if err := h.Connect(ctx); err != nil {
		p.problem("ssh", err.Error(), "", "")
		return
	}
	out, err := h.Output(ctx, "id -u; uname -s; uname -m")
	if err != nil {
		p.noRoot(h, err)
		return
	}
	user, said := cmp.Or(h.User, sshhost.Root), strings.Fields(string(out))
	switch {
	case len(said) != 3:
		p.problem("shell", fmt.Sprintf("its shell answers %q to id -u; uname -s; uname -m", out), "", "make sure that the shell start-up files of user "+user+" print nothing")
		return
	case said[0] != "0":
		p.problem("root", fmt.Sprintf("user %s is not root there", user), "", "log in as root, or as a user who may use sudo without a password")
		return
	case said[1] != "Linux" || goArch(said[2]) != runtime.GOARCH:
		p.problem("arch", fmt.Sprintf("it is %s %s", said[1], said[2]), "this slipway and its components are for Linux on "+runtime.GOARCH,
			"apply from a computer with the same architecture, or remove the machine from the spec")
		return
	}
	program, sent, err := m.upload.program(ctx, h)
	if err != nil {
		p.problem("copy", err.Error(), "", "")
		return
	}
	p.Replaces = sent || program != config.SlipwayBinary
	state, err := runAgentScript(ctx, h, outdatedScript)
	if err != nil {
		p.problem("agent", "find out which program its agent runs: "+err.Error(), "", "")
		return
	}
	p.Outdated = state == "outdated"
	role := "worker"
	if p.Pool.Has(config.RoleControlPlane) {
		role = "control-plane"
	}
	started := time.Now()
	out, err = h.Output(ctx, `exec "$1" machine-report "$2"`, program, role)
	if err == nil {
		err = json.Unmarshal(out, &p.Report)
	}
	if err != nil {
		p.problem("report", "slipway does not run there: "+err.Error(), "", "")
		return
	}
	p.skew = p.Report.Now.Sub(started.Add(time.Since(started) / 2))
	p.judge()
	for _, f := range p.Report.Findings {
		if f.Severity == preflight.Warning {
			to(report.Event{Stage: report.StagePreflight, Machine: p.Node.Name, Item: f.ID, Phase: string(f.Severity), Text: f.What})
		}
	}
}

func goArch(machine string) string {
	switch machine {
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	}
	return machine
}

// maxSkew is how much clocks may differ: certificates are valid a little before they are issued, but not longer.
const maxSkew = 30 * time.Second

// judge compares a machine's report with the spec.
func (p *Probe) judge() {
	r := p.Report
	p.problems = append(p.problems, preflight.Problems(r.Findings)...)
	if a := p.Node.Address.String(); !slices.Contains(r.Addresses, a) {
		p.problem("address", fmt.Sprintf("it does not have the address %s from the spec; it has %s", a, strings.Join(r.Addresses, ", ")), "",
			"correct the spec: other machines reach it by this address")
	}
	if p.skew > maxSkew || p.skew < -maxSkew {
		p.problem("clock", fmt.Sprintf("its clock differs from this computer's by %s", p.skew.Round(time.Second)), "certificates would not be valid yet, or expire early",
			"set both clocks: timedatectl set-ntp true")
	}
	if r.Lock == string(lock.Committed) && r.Node != p.Node.Name {
		p.problem("node", fmt.Sprintf("it is already node %s of cluster %s", r.Node, r.Cluster), "",
			"use that name in the spec, or remove it from that cluster: slipway node remove, then slipway node reset there")
	}
}

// compare finds what machines must not have in common. A machine that was not reached is not compared.
func compare(all []*Probe) {
	ids, clusters := map[string]*Probe{}, map[string]*Probe{}
	for _, p := range all {
		if p.Report.Slipway == "" {
			continue
		}
		switch other, twice := ids[p.Report.Facts.MachineID]; {
		case p.Report.Facts.MachineID == "":
			p.problem("machine-id", "it has no machine id", "", "systemd-machine-id-setup")
		case twice:
			p.problem("machine-id", fmt.Sprintf("it has the same machine id as %s: it is the same machine, or its disk is a copy", other.Node.Name), "",
				"give it an id of its own: rm /etc/machine-id && systemd-machine-id-setup, then reboot it; or list each machine once")
		default:
			ids[p.Report.Facts.MachineID] = p
		}
		if p.Report.Lock == string(lock.Committed) {
			clusters[p.Report.Cluster] = p
		}
	}
	if len(clusters) < 2 {
		return
	}
	for _, p := range all {
		if p.Report.Lock == string(lock.Committed) {
			p.problem("cluster", "it is in cluster "+p.Report.Cluster+", and other machines of the spec are in another", "",
				"remove it from the cluster that it should not be in: slipway node remove, then slipway node reset there")
		}
	}
}

// noRoot explains why the first script did not run: usually the login user cannot become root.
func (p *Probe) noRoot(h *sshhost.Host, err error) {
	var exit *sshhost.ExitError
	if !errors.As(err, &exit) || h.User == "" || h.User == sshhost.Root {
		p.problem("shell", err.Error(), "", "")
		return
	}
	what, remedy := whyNotRoot(h.User, exit)
	p.problem("root", what, "slipway never asks for a password", remedy)
}

const exitNotFound = 127 // of a shell: there is no such program

// whyNotRoot translates what sudo, or a shell without sudo, printed.
func whyNotRoot(user string, e *sshhost.ExitError) (what, remedy string) {
	said := strings.TrimSpace(e.Stderr)
	rule := fmt.Sprintf("on the machine, as root: echo '%s ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/slipway", user)
	switch {
	case e.Code == exitNotFound:
		return fmt.Sprintf("user %s is not root, and there is no sudo", user), "log in as root (spec.ssh.user), or install sudo there, and then: " + rule
	case strings.Contains(said, "have a tty"):
		return fmt.Sprintf("user %s may use sudo only with a terminal: %s", user, said), fmt.Sprintf("on the machine, as root: echo 'Defaults:%s !requiretty' > /etc/sudoers.d/slipway-tty", user)
	case strings.Contains(said, "a password is required"):
		return fmt.Sprintf("sudo asks user %s for a password", user), rule
	}
	return fmt.Sprintf("user %s may not become root: %s", user, said), rule
}
