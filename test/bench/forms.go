// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Form is one way to run the same cluster of one machine.
type Form struct {
	Name string           `json:"name"`
	Runs []Run            `json:"runs"`          // one of each round
	PSS  map[string]int64 `json:"pss,omitempty"` // bytes by program, after the last round's boot and a rest

	form string // of the control plane
	init string
}

// forms are compared with the first one. A new one is a line here.
func forms() []Form {
	return []Form{
		{Name: "host units, own supervisor", form: "HostUnits", init: "slipway"},
		{Name: "host units, systemd", form: "HostUnits", init: "systemd"},
		{Name: "static pods, own supervisor", form: "StaticPods", init: "slipway"},
		{Name: "static pods, systemd", form: "StaticPods", init: "systemd"},
	}
}

// measureForms boots each form once in each round, and in each round another one first: what disturbs the host disturbs all of them.
func (b *bench) measureForms(ctx context.Context) error {
	if b.forms == 0 {
		return nil
	}
	if b.spec != "" {
		b.note("the forms are left out, for they are compared with the shortest spec")
		return nil
	}
	folder, err := os.MkdirTemp("", "slipway-bench-")
	if err != nil {
		return fmt.Errorf("make folder for specs: %w", err)
	}
	defer os.RemoveAll(folder)
	b.report.Forms = forms()
	for round := range b.forms {
		for i := range b.report.Forms {
			f := &b.report.Forms[(round+i)%len(b.report.Forms)]
			what := fmt.Sprintf("%s, round %d", f.Name, round+1)
			if err := b.quiet(ctx, what); err != nil {
				return err
			}
			if err := b.formed(ctx, f, folder, round == b.forms-1); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			run := f.Runs[len(f.Runs)-1]
			b.say("%s: API %.2f  node %.2f  running %.2f  DNS %.2f  up %.2f  again %.2f  down %.2f  CPU %.2f  others' CPU %.2f",
				what, run.APIReady, run.NodeReady, run.PodRunning, run.DNS, run.Up, run.SecondUp, run.Down, run.CPU, run.Foreign)
		}
	}
	return nil
}

// formed boots one form, and looks at its memory when it is the last time.
func (b *bench) formed(ctx context.Context, f *Form, folder string, last bool) error {
	file := filepath.Join(folder, "cluster.yaml")
	if err := os.WriteFile(file, []byte(formSpec(b.cluster, f.form)), 0o600); err != nil {
		return fmt.Errorf("write spec: %w", err)
	}
	var rest func(context.Context) error
	if last && b.idle > 0 {
		rest = func(ctx context.Context) (err error) {
			f.PSS, err = b.resting(ctx)
			return err
		}
	}
	run, err := b.cycle(ctx, false, rest, "-f", file, "--init", f.init)
	if err == nil {
		f.Runs = append(f.Runs, run)
	}
	return err
}

func formSpec(cluster, form string) string {
	return fmt.Sprintf("apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata: {name: %s}\nspec:\n  controlPlane: {form: %s}\n", cluster, form)
}

// resting is the memory of a cluster that has nothing to do, by program.
func (b *bench) resting(ctx context.Context) (map[string]int64, error) {
	ps, own, err := b.memory(ctx)
	if err != nil {
		return nil, err
	}
	by := byProgram(ps, own)
	return by, counted(by)
}

// everywhere are programs that each form runs, as units or in pods: memory without one of them is not all of it.
func everywhere() []string {
	return []string{"containerd", "coredns", "etcd", "kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubelet", agentProgram}
}

// counted is an error when a program is missing among those whose memory was counted.
func counted(pss map[string]int64) error {
	var missing []string
	for _, program := range everywhere() {
		if pss[program] == 0 {
			missing = append(missing, program)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	return fmt.Errorf("count memory: no process of %s", strings.Join(missing, ", "))
}
