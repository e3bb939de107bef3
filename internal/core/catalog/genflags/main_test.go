// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/bintest"
	"github.com/slipway-project/slipway/internal/core/catalog"
)

func TestReadHelp(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		style style
		help  string
		want  []catalog.Flag
	}{
		"pflag": {pflags, `
Flags:
      --audit-log-compress          If set, files are compressed.
      --feature-gates mapStringBool   Options are:
                Kept=true|false (ALPHA - default=false)
                --not-a-flag
      --http2-max int               A limit. (default 3)
      --kubeconfig string           DEPRECATED: use a file.
      --runonce                     If true, exit. (DEPRECATED: by 1.40)
  -v, --v Level                     number for the log level verbosity
      --vmodule pattern=N,...       comma-separated list
`, []catalog.Flag{
			{Name: "audit-log-compress", Kind: "bool"},
			{Name: "feature-gates", Kind: "many"},
			{Name: "http2-max", Kind: "one", Value: "int"},
			{Name: "kubeconfig", Kind: "one", Deprecated: true},
			{Name: "runonce", Kind: "bool", Deprecated: true, Exits: true},
			{Name: "v", Kind: "one", Value: "int"},
			{Name: "vmodule"},
		}},
		"go": {goFlags, `
Member:
  --name 'default'
    Human-readable name, see --other.
  --memory-mlock
    Stay in RAM.
  --discovery ''
    Discovery URL.
    Deprecated in v3.6 and will go. Use '--x' instead.
`, []catalog.Flag{{Name: "name"}, {Name: "memory-mlock"}, {Name: "discovery", Deprecated: true}}},
		"urfave": {urfave, `
GLOBAL OPTIONS:
   --config string, -c string  Path to the file
   --root string               root directory
   --help, -h                  Show help
`, []catalog.Flag{{Name: "config", Kind: "one"}, {Name: "root", Kind: "one"}, {Name: "help", Kind: "bool", Exits: true}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, readHelp(c.help, c.style)); diff != "" {
				t.Error(diff)
			}
		})
	}
	if diff := cmp.Diff([]string{"Kept", "Own"}, readGates("  Options are:\n   Kept=true|false (ALPHA)\n  kube:Own=true|false\n")); diff != "" {
		t.Error(diff)
	}
}

// TestTableIsTrue asks the real programs about every flag and gate of the embedded table, and whether their help names others.
func TestTableIsTrue(t *testing.T) {
	t.Parallel()
	all := programs(bintest.Dir(t, "kube", "etcd", "containerd"), t.TempDir())
	r := catalog.Default()
	for _, p := range all {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			help := p.run(t.Context(), "--help")
			var names []string
			for _, f := range r.Flags(p.name) {
				names = append(names, f.Name)
			}
			told := readHelp(help, p.style)
			hidden := slices.DeleteFunc(names, func(n string) bool {
				return slices.ContainsFunc(told, func(f catalog.Flag) bool { return f.Name == n })
			})
			got, err := p.flags(t.Context(), help, append(hidden, "no-such-flag"))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(r.Flags(p.name), got); diff != "" {
				t.Errorf("flags (-table +program):\n%s", diff)
			}
			if p.style == pflags {
				p.checkGates(t, r, help)
			}
		})
	}
}

func (p program) checkGates(t *testing.T, r catalog.Release, help string) {
	t.Helper()
	if got := strings.TrimSpace(p.run(t.Context(), "--version")); got != "Kubernetes v"+r.Kubernetes {
		t.Fatalf("--version says %s, the table is of %s", got, r.Kubernetes)
	}
	known := map[string]catalog.Gate{}
	names := []string{"NoSuchGate"}
	for _, g := range r.Gates() {
		known[g.Name], names = g, append(names, g.Name)
	}
	for _, name := range readGates(help) {
		if _, ok := known[name]; !ok {
			t.Errorf("--help names the gate %s, the table does not", name)
		}
	}
	if p.name == "kube-scheduler" { // each locked gate costs a start; they share what is locked
		got, err := p.gates(t.Context(), names, map[string]string{})
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range got {
			if diff := cmp.Diff(known[g.Name], g); diff != "" {
				t.Error(diff)
			}
			delete(known, g.Name)
		}
		if len(known) > 0 {
			t.Errorf("gates that it does not know: %v", known)
		}
		return
	}
	for value, other := range map[string]string{"true": "false", "false": "true"} {
		try := map[string]bool{}
		for name, g := range known {
			if g.Locked != other {
				try[name] = true
			}
		}
		if m := refusedGate.FindString(p.runGates(t.Context(), try, value)); m != "" {
			t.Error(m)
		}
		if m := refusedGate.FindString(p.runGates(t.Context(), map[string]bool{"NoSuchGate": true}, value)); m != "unrecognized feature gate: NoSuchGate" {
			t.Errorf("an unknown gate does not end it: %q", m)
		}
	}
}
