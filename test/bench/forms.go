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

// Form is a form of the control plane with an init system, measured with a cluster of one machine.
type Form struct {
	Name string           `json:"name"`
	Runs []Run            `json:"runs"`          // one of each round
	PSS  map[string]int64 `json:"pss,omitempty"` // bytes by program, in the idle cluster of the last round

	form string // of the control plane
	init string
}

// forms returns all forms. They are compared with the first one.
func forms() []Form {
	return []Form{
		{Name: "host units, Slipway's supervisor", form: "HostUnits", init: "slipway"},
		{Name: "host units, systemd", form: "HostUnits", init: "systemd"},
		{Name: "static pods, Slipway's supervisor", form: "StaticPods", init: "slipway"},
		{Name: "static pods, systemd", form: "StaticPods", init: "systemd"},
	}
}

// measureForms boots each form once in each round, starting with another form each time, so that other processes on the host disturb all
// forms alike.
func (b *bench) measureForms(ctx context.Context) error {
	if b.forms == 0 {
		return nil
	}
	if b.spec != "" {
		b.note("-f: the forms are not measured, because they need an empty spec")
		return nil
	}
	dir, err := os.MkdirTemp("", "slipway-bench-")
	if err != nil {
		return fmt.Errorf("create directory for specs: %w", err)
	}
	defer os.RemoveAll(dir)
	b.report.Forms = forms()
	for round := range b.forms {
		for i := range b.report.Forms {
			f := &b.report.Forms[(round+i)%len(b.report.Forms)]
			what := fmt.Sprintf("%s, round %d", f.Name, round+1)
			if err := b.quiet(ctx, what); err != nil {
				return err
			}
			if err := b.bootForm(ctx, f, dir, round == b.forms-1); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			run := f.Runs[len(f.Runs)-1]
			b.say("%s: API %.2f  node %.2f  running %.2f  DNS %.2f  up %.2f  again %.2f  down %.2f  CPU %.2f  others' CPU %.2f",
				what, run.APIReady, run.NodeReady, run.PodRunning, run.DNS, run.Up, run.SecondUp, run.Down, run.CPU, run.Foreign)
		}
	}
	return nil
}

// bootForm boots one form, and measures its memory in the last round.
func (b *bench) bootForm(ctx context.Context, f *Form, dir string, last bool) error {
	file := filepath.Join(dir, "cluster.yaml")
	if err := os.WriteFile(file, []byte(formSpec(b.cluster, f.form)), 0o600); err != nil {
		return fmt.Errorf("write spec: %w", err)
	}
	var idle func(context.Context) error
	if last && b.idle > 0 {
		idle = func(ctx context.Context) (err error) {
			ps, own, err := b.memory(ctx)
			if err != nil {
				return err
			}
			f.PSS = byProgram(ps, own)
			return complete(f.PSS)
		}
	}
	run, err := b.cycle(ctx, false, idle, "-f", file, "--init", f.init)
	if err == nil {
		f.Runs = append(f.Runs, run)
	}
	return err
}

func formSpec(cluster, form string) string {
	return fmt.Sprintf("apiVersion: slipway.dev/v1alpha1\nkind: Cluster\nmetadata: {name: %s}\nspec:\n  controlPlane: {form: %s}\n", cluster, form)
}

// programs lists the programs that every form runs, as units or in pods.
func programs() []string {
	return []string{"containerd", "coredns", "etcd", "kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubelet", agentProgram}
}

// complete returns an error if the memory of a program is missing.
func complete(pss map[string]int64) error {
	var missing []string
	for _, program := range programs() {
		if pss[program] == 0 {
			missing = append(missing, program)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	return fmt.Errorf("measure memory: no process of %s", strings.Join(missing, ", "))
}
