// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/slipway-project/slipway/internal/artifact"
	"github.com/slipway-project/slipway/internal/core/spec"
	"github.com/slipway-project/slipway/internal/sshhost"
)

// ApplyOptions are the choices of one apply.
type ApplyOptions struct {
	Source            Source
	AcceptNewHostKeys bool          // write unknown host keys to known_hosts
	Wait              time.Duration // how long to wait for the cluster; 0 means do not wait
	Report            func(Event)   // called from several goroutines
	// Confirm is shown what would be done, when there is something. Its error is Apply's, and nothing is done.
	Confirm func(ApplyPlan) error
}

// ApplyPlan is what an apply would do.
type ApplyPlan struct {
	Cluster  string      `json:"cluster"`
	Release  string      `json:"release"`
	Machines []ApplyNode `json:"machines"`
}

// None reports whether nothing is to be done.
func (p ApplyPlan) None() bool {
	for _, m := range p.Machines {
		if len(m.Do) > 0 {
			return false
		}
	}
	return true
}

// ApplyNode is what an apply would do with one machine.
type ApplyNode struct {
	Name    string   `json:"name"`
	Address string   `json:"address"`
	Roles   []string `json:"roles"`
	Do      []string `json:"do"`              // in words, in their order; empty: it is as the spec says
	Steps   []Change `json:"steps,omitempty"` // of a machine that is in the cluster
}

// Apply makes a cluster of machines that exist, or brings it to its spec. All machines are looked at before anything is made of any.
// It may be interrupted at any moment and run again: it continues.
func (l *Launcher) Apply(ctx context.Context, o ApplyOptions) (Result, error) {
	ctx, cancel := context.WithCancel(ctx) // the connections end with the command
	defer cancel()
	a := &apply{up: &up{Launcher: l, o: UpOptions{Source: o.Source, Wait: o.Wait, Report: o.Report}, begun: time.Now()}, confirm: o.Confirm}
	u := a.up
	u.result.Milestones = []Milestone{}
	cluster, err := l.Load(o.Source)
	if err != nil {
		return u.result, err
	}
	u.cluster, u.result.Cluster, u.result.Release = cluster, cluster.Name, cluster.Release.Kubernetes
	u.report(Event{Stage: StageSpec, Text: "Kubernetes " + cluster.Release.Kubernetes})
	targets, err := a.refuse()
	if err != nil {
		return u.result, err
	}
	a.accept, a.targets = o.AcceptNewHostKeys, targets
	return u.result, a.run(ctx)
}

// apply is one run of Apply: what comes before the road that local machines take too.
type apply struct {
	*up
	far     farMachines
	confirm func(ApplyPlan) error
	bundle  artifact.Bundle
	targets []farMachine
	accept  bool // host keys that nobody knows
}

// refuse says early what cannot be applied, and otherwise where the machines are.
func (a *apply) refuse() ([]farMachine, error) {
	if _, err := os.Stat(filepath.Join(a.Root, "machines", a.cluster.Name)); !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cluster %s consists of machines of this host: slipway up --name %s brings it to its spec; for other machines choose another name",
			a.cluster.Name, a.cluster.Name)
	}
	parsed, _ := spec.Parse(a.o.Source.File, a.cluster.Spec, spec.Options{Name: a.cluster.Name}) // Load has found no problem
	var out []farMachine
	for i, p := range parsed.Pools {
		if len(p.Machines) == 0 {
			return nil, &Error{InvalidSpec, fmt.Errorf("%s: spec.pools[%d]: pool %s lists no machines: name those that exist, with their addresses; slipway up makes local ones",
				parsed.Where(spec.Element("spec.pools", i)), i, p.Name)}
		}
		for _, m := range p.Machines {
			out = append(out, farMachine{Name: m.Name, Address: m.Address, SSH: sshTarget(m)})
		}
	}
	if len(out) == 0 {
		return nil, &Error{InvalidSpec, fmt.Errorf("%s: spec.pools is missing: list the machines that exist, with their addresses; slipway up makes local ones", parsed.File)}
	}
	return out, nil
}

func sshTarget(m spec.Machine) sshhost.Target {
	return sshhost.Target{
		Name: m.Name, Host: m.Address.String(), User: m.SSH.User, Port: m.SSH.Port, IdentityFile: m.SSH.IdentityFile, HostKey: m.SSH.HostKey,
		Jump: sshhost.Jump(m.SSH.Jump),
	}
}

func (a *apply) run(ctx context.Context) error {
	bundle, complete, err := a.inStore(ctx, a.cluster.Release)
	if err != nil {
		return err
	}
	if !complete {
		return &Error{Preflight, fmt.Errorf("the component store of this computer (%s) does not have Kubernetes %s: run slipway bundle build, or slipway bundle import",
			filepath.Join(a.Root, "store"), a.cluster.Release.Kubernetes)}
	}
	store, err := a.Store()
	if err != nil {
		return err
	}
	a.bundle, a.components = bundle, digests(bundle)
	brings, err := newCargo(ctx, a.Exe, store, a.report)
	if err != nil {
		return err
	}
	if err := a.hold(ctx); err != nil {
		return err
	}
	defer a.letGo()
	record, _, err := a.applied(a.cluster.Name) // not before: another apply may have written it meanwhile
	if err != nil {
		return err
	}
	a.far = a.Launcher.far(ctx, a.cluster.Name, record, a.accept)
	a.far.brings = brings
	for _, t := range a.targets {
		a.far.spec[t.Name] = t
	}
	probes, err := a.probe(ctx)
	if err != nil {
		return err
	}
	if err := a.settle(ctx, a.far); err != nil {
		return err
	}
	if err := a.immutable(); err != nil {
		return err
	}
	plan, err := a.plan(ctx, probes)
	if err != nil {
		return err
	}
	if !plan.None() && a.confirm != nil {
		if err := a.confirm(plan); err != nil {
			return err
		}
	}
	if err := a.together(ctx, a.far); err != nil {
		return a.late(ctx, err)
	}
	a.result.Elapsed = time.Since(a.begun)
	a.report(Event{Stage: StageDone})
	return nil
}
