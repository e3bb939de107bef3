// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/core/placement"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/render"
)

// userPrefix is how a plan calls the user's own units.
const userPrefix = "user-"

// With gives a plan as units for fleet: what the plan has, each on the plan's node, but for the user's own units, those of the whole
// cluster: they keep their rules instead.
func With(p plan.Plan, own []Unit) (render.Rendered, error) {
	r := rendering{plan: p, entries: map[plan.Ref]plan.Entry{}}
	for _, e := range p.Entries {
		r.entries[e.Ref] = e
	}
	mine := map[string]bool{}
	for _, u := range own {
		text, err := Encode(u)
		if err != nil {
			return render.Rendered{}, err
		}
		mine[u.Name] = true
		var refs []plan.Ref
		if e, ok := p.Find("unit/" + userPrefix + u.Name); ok {
			refs = append(refs, e.Ref)
		}
		r.out.Add(u.Name+placement.Suffix, 0o644, text, refs...)
	}
	for _, e := range p.Entries {
		if name, user := strings.CutPrefix(e.Ref.String(), "unit/"+userPrefix); user && mine[name] {
			continue
		}
		if err := r.entry(e); err != nil {
			return render.Rendered{}, err
		}
	}
	if err := r.rest(); err != nil {
		return render.Rendered{}, err
	}
	return r.out.Finish(p)
}

type rendering struct {
	plan    plan.Plan
	entries map[plan.Ref]plan.Entry
	out     render.Rendered
	alone   []plan.Entry // what no unit needs
}

// rest is a unit that brings what no other needs.
func (r *rendering) rest() error {
	if len(r.alone) == 0 {
		return nil
	}
	e := plan.Entry{}
	for _, x := range r.alone {
		e.Needs = append(e.Needs, x.Ref)
	}
	if err := r.unit(e, plan.Unit{Name: "files", Args: []string{"/bin/true"}, Oneshot: true}); err != nil {
		return err
	}
	last := &r.out.Files[len(r.out.Files)-1]
	last.Refs = last.Refs[1:] // it stands for no unit
	return nil
}

const (
	bornHere = "keys are born on the node and leave it never: slipway agent makes them there"
	// componentPod: the kubelet tells pods apart by what the agent, or the form for static pods, puts into the manifest.
	componentPod = "a control plane of static pods: render it with --format staticpod, or leave it to slipway agent"
	byOthers     = "fleet cannot wait for a condition that somebody else makes true: the unit behind it starts again until it holds"
)

func (r *rendering) entry(e plan.Entry) error {
	switch it := e.Item.(type) {
	case plan.Unit:
		return r.unit(e, it)
	case plan.File:
		if len(it.Fill) > 0 {
			r.out.Leave(e.Ref, bornHere)
			return nil
		}
		r.blob(e.Ref, it.Content)
	case plan.StaticPod:
		if it.Component {
			r.out.Leave(e.Ref, componentPod)
			return nil
		}
		r.blob(e.Ref, it.Manifest)
	case plan.Dir, plan.Artifact: // in the units that need them
		if !r.needed(e.Ref) {
			r.alone = append(r.alone, e)
		}
	case plan.Mount:
		r.out.Leave(e.Ref, "a mount belongs to the machine: write a mount unit there")
	case plan.Cert, plan.Kubeconfig:
		r.out.Leave(e.Ref, bornHere)
	case plan.Precondition:
		r.out.Leave(e.Ref, byOthers)
	}
	return nil
}

// blob adds a file by its digest, as the store has its own: a unit that needs it fetches it like a program.
func (r *rendering) blob(ref plan.Ref, content string) {
	if !r.needed(ref) {
		r.alone = append(r.alone, r.entries[ref])
	}
	name := "blobs/sha256/" + digest(content)
	for i, f := range r.out.Files {
		if f.Path == name { // two files of the same content
			r.out.Files[i].Refs = append(r.out.Files[i].Refs, ref)
			return
		}
	}
	r.out.Add(name, 0o644, content, ref)
}

// unit writes a component of this node.
func (r *rendering) unit(e plan.Entry, u plan.Unit) error {
	w := &writer{}
	after := r.units(e)
	w.section("Unit")
	w.set("Description", u.Name+" of "+r.plan.Node+", placed by fleet")
	for _, name := range after {
		w.set("Requires", name)
		w.set("After", name)
	}
	w.section("Service")
	switch {
	case u.Oneshot:
		w.set("Type", "oneshot")
		w.set("RemainAfterExit", "yes")
	case u.Ready.Kind == plan.ProbeNotify:
		w.set("Type", "notify")
	}
	w.set("EnvironmentFile", "-"+storeFile)
	for _, env := range u.Env {
		w.set("Environment", quoted(env))
	}
	if u.EnvFile != "" {
		w.set("EnvironmentFile", placement.Escape(u.EnvFile))
	}
	if u.Dir != "" {
		w.set("WorkingDirectory", placement.Escape(u.Dir))
	}
	refs := []plan.Ref{e.Ref}
	for _, need := range r.closure(e) {
		if err := r.prepare(w, need); err != nil {
			return err
		}
		switch need.Item.(type) {
		case plan.Dir, plan.Artifact:
			refs = append(refs, need.Ref)
		default:
		}
	}
	if u.DataGuard.Mark != "" { // no start over lost data: here is no agent to see to it
		w.command("ExecStartPre", []string{"/bin/sh", "-c", `test ! -e "$1" || test -e "$2"`, "holds", u.DataGuard.Mark, u.DataGuard.Data})
	}
	w.command("ExecStart", u.Args)
	if u.Oneshot { // systemd restarts no such unit
		w.set("TimeoutStartSec", "0")
	} else {
		stop := u.StopTimeout
		if stop == 0 {
			stop = 10 * time.Second
		}
		w.always(stop.String(), true)
	}
	if !u.KillChildren {
		w.set("KillMode", "process")
	}
	w.section(sectionFleet)
	w.set("MachineMetadata", quoted(metaNode+"="+r.plan.Node))
	for _, name := range after {
		w.set("MachineOf", name)
	}
	w.set("Conflicts", prefixed(u.Name)+"@*"+placement.Suffix)
	r.out.Add(r.file(u.Name), 0o644, w.b.String(), refs...)
	if len(w.wrong) > 0 {
		return fmt.Errorf("unit %s: %w", u.Name, w.wrong[0])
	}
	return nil
}

func (r *rendering) file(unit string) string {
	return prefixed(strings.ReplaceAll(unit, "@", "-")) + "@" + r.plan.Node + placement.Suffix
}
