// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/preflight"
	"github.com/slipway-project/slipway/internal/sshhost"
)

// probe is what is known of a machine that exists before anything is made of it.
type probe struct {
	node     config.NodeName
	pool     config.Pool
	report   preflight.Report
	skew     time.Duration // its clock before this computer's
	replaces bool          // another slipway is there, or none
	old      bool          // the agent runs with another program or unit than the machine has
	problems []preflight.Finding
}

// MachineProblems is everything that keeps machines from becoming nodes. It comes in an Error of kind Preflight.
type MachineProblems []MachineProblem

// MachineProblem is what is wrong with one machine.
type MachineProblem struct {
	Machine  string              `json:"machine"`
	Address  string              `json:"address"`
	Findings []preflight.Finding `json:"findings"`
}

// Error has a paragraph for each machine.
func (e MachineProblems) Error() string {
	lines := []string{Plural(len(e), "machine") + " cannot become part of the cluster; nothing has been made of any:"}
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

// probe looks at all machines at once. Whatever is wrong with any of them comes together.
func (a *apply) probe(ctx context.Context) ([]*probe, error) {
	var all []*probe
	for _, p := range a.cluster.Config.Pools {
		for _, n := range p.Nodes {
			all = append(all, &probe{node: n, pool: p})
		}
	}
	looks, looking := errgroup.WithContext(ctx)
	looks.SetLimit(16)
	for _, p := range all {
		looks.Go(func() error {
			a.look(looking, p)
			return looking.Err()
		})
	}
	if err := looks.Wait(); err != nil {
		return nil, err
	}
	compare(all)
	var wrong MachineProblems
	for _, p := range all {
		if len(p.problems) > 0 {
			wrong = append(wrong, MachineProblem{p.node.Name, p.node.Address.String(), p.problems})
		}
	}
	if len(wrong) > 0 {
		return nil, &Error{Preflight, wrong}
	}
	return all, nil
}

func (p *probe) wrong(id, what, detail, remedy string) {
	p.problems = append(p.problems, preflight.Finding{ID: id, Severity: preflight.Problem, What: what, Detail: detail, Remedy: remedy})
}

// look asks one machine, from what takes the least to what takes the most.
func (a *apply) look(ctx context.Context, p *probe) {
	h := a.far.host(p.node.Name)
	a.report(Event{Stage: StagePreflight, Machine: p.node.Name, Phase: "look", Text: "looks at the machine"})
	if err := h.Connect(ctx); err != nil {
		p.wrong("ssh", err.Error(), "", "")
		return
	}
	out, err := h.Output(ctx, "id -u; uname -s; uname -m")
	if err != nil {
		p.noRoot(h, err)
		return
	}
	said := strings.Fields(string(out))
	switch {
	case len(said) != 3:
		p.wrong("shell", fmt.Sprintf("its shell answers %q to id -u; uname -s; uname -m", out), "", "let what user "+cmp.Or(h.User, sshhost.Root)+" has in shell start-up files print nothing")
		return
	case said[0] != "0":
		p.wrong("root", fmt.Sprintf("user %s is not root there", cmp.Or(h.User, sshhost.Root)), "", "log in as root, or as a user who may use sudo without a password")
		return
	case said[1] != "Linux" || goArch(said[2]) != runtime.GOARCH:
		p.wrong("arch", fmt.Sprintf("it is %s %s", said[1], said[2]), "this slipway and its components are for Linux on "+runtime.GOARCH, "apply from a computer of that kind, or take the machine out of the spec")
		return
	}
	at, sent, err := a.far.brings.slipway(ctx, h)
	if err != nil {
		p.wrong("copy", err.Error(), "", "")
		return
	}
	p.replaces = sent || at != config.SlipwayBinary
	if p.old, err = old(ctx, h); err != nil {
		p.wrong("agent", err.Error(), "", "")
		return
	}
	role := "worker"
	if p.pool.Has(config.RoleControlPlane) {
		role = "control-plane"
	}
	begun := time.Now()
	out, err = h.Output(ctx, `exec "$1" machine-report "$2"`, at, role)
	if err == nil {
		err = json.Unmarshal(out, &p.report)
	}
	if err != nil {
		p.wrong("report", "slipway does not run there: "+err.Error(), "", "")
		return
	}
	p.skew = p.report.Now.Sub(begun.Add(time.Since(begun) / 2))
	p.judge()
	for _, f := range p.report.Findings {
		if f.Severity == preflight.Warning {
			a.report(Event{Stage: StagePreflight, Machine: p.node.Name, Item: f.ID, Phase: string(f.Severity), Text: f.What})
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

const worstSkew = 30 * time.Second

// judge finds what does not fit between a machine and the spec.
func (p *probe) judge() {
	r := p.report
	p.problems = append(p.problems, preflight.Problems(r.Findings)...)
	if a := p.node.Address.String(); !slices.Contains(r.Addresses, a) {
		p.wrong("address", fmt.Sprintf("it does not have the address %s of the spec; it has %s", a, strings.Join(r.Addresses, ", ")), "", "correct the spec: other machines reach it by this address")
	}
	if p.skew > worstSkew || p.skew < -worstSkew {
		p.wrong("clock", fmt.Sprintf("its clock differs from this computer's by %s", p.skew.Round(time.Second)), "certificates would not be valid yet, or not for long",
			"set both right: timedatectl set-ntp true")
	}
	if r.Lock == committedPhase && r.Node != p.node.Name {
		p.wrong("node", fmt.Sprintf("it is node %s of cluster %s already", r.Node, r.Cluster), "", "call it so in the spec, or take it out of that cluster: slipway node remove, then slipway node reset there")
	}
}

// compare finds what machines must not have in common.
func compare(all []*probe) {
	ids, clusters := map[string]*probe{}, map[string]*probe{}
	for _, p := range all {
		if p.report.Slipway == "" { // it was not asked
			continue
		}
		switch other, twice := ids[p.report.Facts.MachineID]; {
		case p.report.Facts.MachineID == "":
			p.wrong("machine-id", "it has no machine id", "", "systemd-machine-id-setup")
		case twice:
			p.wrong("machine-id", fmt.Sprintf("its machine id is that of %s, too: the same machine, or a copied disk", other.node.Name), "",
				"give it its own: rm /etc/machine-id && systemd-machine-id-setup, then reboot it; or name each machine once")
		default:
			ids[p.report.Facts.MachineID] = p
		}
		if p.report.Lock == committedPhase {
			clusters[p.report.Cluster] = p
		}
	}
	if len(clusters) < 2 {
		return
	}
	for _, p := range all {
		if p.report.Lock == committedPhase {
			p.wrong("cluster", "it is in cluster "+p.report.Cluster+", and other machines of the spec are in another", "", "take it out of the one that is not meant: slipway node remove, then slipway node reset there")
		}
	}
}
