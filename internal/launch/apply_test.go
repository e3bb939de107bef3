// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/core/config"
	coremachine "github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/preflight"
	"github.com/slipway-project/slipway/internal/sshhost"
)

func sound(name string, last byte) *probe {
	a := netip.AddrFrom4([4]byte{192, 0, 2, last})
	return &probe{
		node:   config.NodeName{Name: name, Address: a},
		report: preflight.Report{Slipway: "dev", Facts: coremachine.Facts{MachineID: "id-" + name}, Addresses: []string{"10.0.0.1", a.String()}, Lock: freePhase},
	}
}

func TestProbeJudges(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		spoil func(p *probe)
		want  string // of the only problem; empty: none
	}{
		"a sound machine": {func(*probe) {}, ""},
		"another address": {func(p *probe) { p.report.Addresses = []string{"192.0.2.9"} }, "does not have the address 192.0.2.1"},
		"a clock ahead":   {func(p *probe) { p.skew = time.Hour }, "differs from this computer's by 1h0m0s"},
		"a clock behind":  {func(p *probe) { p.skew = -time.Minute }, "differs from this computer's by -1m0s"},
		"a clock near":    {func(p *probe) { p.skew = 5 * time.Second }, ""},
		"our own node":    {func(p *probe) { p.report.Lock, p.report.Node = committedPhase, "a" }, ""},
		"somebody's node": {func(p *probe) { p.report.Lock, p.report.Node, p.report.Cluster = committedPhase, "x", "c1" }, "node x of cluster c1"},
		"its own findings": {func(p *probe) {
			p.report.Findings = []preflight.Finding{{Severity: preflight.Warning, What: "w"}, {Severity: preflight.Problem, What: "no nft"}}
		}, "no nft"},
	} {
		p := sound("a", 1)
		tc.spoil(p)
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
	all := []*probe{sound("a", 1), sound("b", 2), sound("c", 3), sound("d", 4)}
	all[1].report.Facts.MachineID = all[0].report.Facts.MachineID
	all[2].report.Lock, all[2].report.Cluster = committedPhase, "c1"
	all[3].report.Lock, all[3].report.Cluster = committedPhase, "c2"
	compare(all)
	for i, want := range []string{"", "that of a, too", "in cluster c1", "in cluster c2"} {
		p := all[i]
		if want == "" && len(p.problems) > 0 || want != "" && (len(p.problems) != 1 || !strings.Contains(p.problems[0].What, want)) {
			t.Errorf("%s: %+v, want %q", p.node.Name, p.problems, want)
		}
	}
	unasked := []*probe{{}, {}}
	compare(unasked) // nobody knows of two machines that were not reached that they are the same
	if len(unasked[1].problems) > 0 {
		t.Errorf("%+v", unasked[1].problems)
	}
}

// All machines come in one answer, each with all that is wrong.
func TestMachineProblemsTellEverything(t *testing.T) {
	t.Parallel()
	text := MachineProblems{
		{"a", "192.0.2.1", []preflight.Finding{{What: "one", Remedy: "do this"}, {What: "two", Detail: "because"}}},
		{"b", "192.0.2.2", []preflight.Finding{{What: "three"}}},
	}.Error()
	for _, want := range []string{"2 machines", "a (192.0.2.1)", "one", "remedy: do this", "two", "because", "b (192.0.2.2)", "three"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
}

func applyOf(t *testing.T, l *Launcher, spec string) error {
	t.Helper()
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata: {name: far}\n"+spec), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := l.Apply(t.Context(), ApplyOptions{Source: Source{File: file}})
	return err
}

func TestApplyRefusesBeforeItReachesAnyMachine(t *testing.T) {
	t.Parallel()
	const listed = "spec: {pools: [{name: a, roles: [control-plane], machines: [{name: m, address: 192.0.2.1}]}]}\n"
	for name, tc := range map[string]struct {
		spec string
		make string // a folder
		want string
	}{
		"no pools":               {"", "", "spec.pools is missing"},
		"a pool made to order":   {"spec: {pools: [{name: a, roles: [control-plane]}]}\n", "", "pool a lists no machines"},
		"a cluster of this host": {listed, "machines/far", "slipway up --name far"},
		"an empty store":         {listed, "", "slipway bundle build"},
	} {
		l := &Launcher{Root: t.TempDir(), Log: slog.New(slog.DiscardHandler)}
		if err := os.MkdirAll(filepath.Join(l.Root, tc.make), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := applyOf(t, l, tc.spec); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

// What a far cluster is, its record says, also to up and down; its machines are named without a word over SSH.
func TestFarClustersAreNotLocalOnes(t *testing.T) {
	t.Parallel()
	l := &Launcher{Root: t.TempDir(), Log: slog.New(slog.DiscardHandler), SSH: sshhost.Config{Home: t.TempDir(), Timeout: time.Second}}
	far := l.far(t.Context(), "far", farRecord{}, false)
	m := farMachine{Name: "m", Address: netip.MustParseAddr("127.0.0.1"), SSH: sshhost.Target{Name: "m", Host: "127.0.0.1", Port: 1}}
	for i, want := range []bool{true, false} {
		if first, err := far.remember(m); err != nil || first != want {
			t.Errorf("remember %d: %t, %v", i, first, err)
		}
	}
	if is, err := l.Applied("far"); err != nil || !is {
		t.Errorf("applied: %t, %v", is, err)
	}
	if names, err := l.MachineNames(t.Context(), "far"); err != nil || len(names) != 1 || names[0] != "m" {
		t.Errorf("machines %v, %v", names, err)
	}
	if _, err := l.Up(t.Context(), UpOptions{Source: Source{Name: "far"}}); err == nil || !strings.Contains(err.Error(), "slipway apply") {
		t.Errorf("up: %v", err)
	}
	err := l.Down(t.Context(), "far", false, func(Event) {})
	if err == nil || !strings.Contains(err.Error(), "slipway node reset") {
		t.Errorf("down: %v", err)
	}
	if is, err := l.Applied("far"); err != nil || !is {
		t.Errorf("a cluster whose machine nobody reached was forgotten: %t, %v", is, err)
	}
	if _, err := l.MachineStop(t.Context(), "far", "m"); err == nil || !strings.Contains(err.Error(), "not of this host: log in to it yourself: ssh -p 1 root@127.0.0.1") {
		t.Errorf("machine stop: %v", err)
	}
	_, err = l.Exec(t.Context(), "far", "", machine.Command{Args: []string{"ps", "ax"}})
	if err == nil || !strings.Contains(err.Error(), "ssh -p 1 root@127.0.0.1 'ps ax'") {
		t.Errorf("exec: %v", err)
	}
	if err := l.FarLog(t.Context(), "far", "", "kubelet", -1, false, io.Discard); err == nil || !strings.Contains(err.Error(), "cannot be reached") {
		t.Errorf("logs: %v", err)
	}
	s, err := l.Status(t.Context(), "far")
	if err != nil || s.Ready || !strings.Contains(s.Verdict, "cannot be reached") {
		t.Errorf("status %+v, %v", s, err)
	}
	if err := far.Remove(t.Context(), "m"); err != nil {
		t.Fatal(err)
	}
	if r, _, err := l.applied("far"); err != nil || len(r.Machines) != 0 {
		t.Errorf("record %+v, %v", r, errors.Join(err))
	}
}
