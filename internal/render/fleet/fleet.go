// SPDX-License-Identifier: Apache-2.0

// Package fleet renders a plan as unit files for CoreOS fleet, and imports such units. Each component becomes
// kube-NAME@NODE.service, which fleet places on the machine with the metadata slipway-node=NODE. The user's
// own units keep their names and placement rules. Units fetch files and programs by digest and verify them
// before use, and replace the old ones only afterwards. The package does no I/O. What fleet cannot express is
// omitted with a reason, or is an error.
//
// Read [Unit] and [With] first.
//
//	Unit{Name: "web", On: {"disk": ["ssd"]}}  ⇄  web.service: [X-Fleet] MachineMetadata=disk=ssd
package fleet

import (
	"crypto/sha256"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/core/placement"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/render"
)

// Unit is a user's own unit, as in a spec. Fleet ignores the readiness probes http, tcp and file, but keeps them.
type Unit = placement.Unit

// Metadata of the machines, in addition to their labels: fleetd --metadata
// slipway-node=NODE,slipway-runs-etcd=true,….
const (
	metaNode = "slipway-node"
	metaRuns = "slipway-runs-" // followed by the name of a component
)

const (
	sectionFleet = "X-Fleet"
	sectionOwn   = "X-Slipway" // systemd and fleet ignore it
	factsFile    = "/run/slipway/facts.env"
	storeFile    = "/etc/slipway/fleet.env" // sets the download address on the machines: SLIPWAY_STORE=https://…
	prefix       = "kube-"
)

// component reports whether name is a component that units can refer to in their placement rules.
func component(name string) bool {
	switch name {
	case "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "containerd", "api-balancer":
		return true
	}
	return false
}

// digest is the SHA-256 of content in hex.
func digest(content string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(content))) }

// userPrefix is the prefix of the user's own units in a plan.
const userPrefix = "user-"

// With renders a plan as units for fleet. Everything in the plan is placed on the plan's node, except the
// user's own units: own is the list of those of the whole cluster, which keep their placement rules.
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

// rendering is the state of With.
type rendering struct {
	plan    plan.Plan
	entries map[plan.Ref]plan.Entry
	out     render.Rendered
	alone   []plan.Entry // entries that no unit needs
}

// rest adds a unit that provides what no other unit needs.
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
	last.Refs = last.Refs[1:] // the unit itself has no entry
	return nil
}

const (
	keyOnNode = "keys are generated on the node: slipway agent makes them there"
	// componentPod: the kubelet identifies a component's pod by values that the agent or the staticpod format
	// puts in its manifest.
	componentPod = "the control plane runs as static pods: use --format staticpod, or run slipway agent"
	noWait       = "fleet cannot wait for a precondition: the units that need it restart until it is met"
)

// entry adds or omits one entry of the plan.
func (r *rendering) entry(e plan.Entry) error {
	switch it := e.Item.(type) {
	case plan.Unit:
		return r.unit(e, it)
	case plan.File:
		if len(it.Fill) > 0 {
			r.out.Omit(e.Ref, keyOnNode)
			return nil
		}
		r.blob(e.Ref, it.Content)
	case plan.StaticPod:
		if it.Component {
			r.out.Omit(e.Ref, componentPod)
			return nil
		}
		r.blob(e.Ref, it.Manifest)
	case plan.Dir, plan.Artifact: // part of the units that need them
		if !r.needed(e.Ref) {
			r.alone = append(r.alone, e)
		}
	case plan.Mount:
		r.out.Omit(e.Ref, "fleet does not place mounts: add a mount unit on the machine")
	case plan.Cert, plan.Kubeconfig:
		r.out.Omit(e.Ref, keyOnNode)
	case plan.Precondition:
		r.out.Omit(e.Ref, noWait)
	}
	return nil
}

// blob adds a file under its digest, as in the component store. The units that need it fetch it like a program.
func (r *rendering) blob(ref plan.Ref, content string) {
	if !r.needed(ref) {
		r.alone = append(r.alone, r.entries[ref])
	}
	name := "blobs/sha256/" + digest(content)
	for i, f := range r.out.Files {
		if f.Path == name { // two files have the same content
			r.out.Files[i].Refs = append(r.out.Files[i].Refs, ref)
			return
		}
	}
	r.out.Add(name, 0o644, content, ref)
}

// unit adds the unit of a component of this node.
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
	if u.DataGuard.Mark != "" { // replaces the agent's data guard
		w.command("ExecStartPre", []string{"/bin/sh", "-c", `test ! -e "$1" || test -e "$2"`, "data-guard", u.DataGuard.Mark, u.DataGuard.Data})
	}
	w.command("ExecStart", u.Args)
	if u.Oneshot { // systemd does not restart oneshot units
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

// file is the file name of a component's unit: kube-NAME@NODE.service.
func (r *rendering) file(unit string) string {
	return prefixed(strings.ReplaceAll(unit, "@", "-")) + "@" + r.plan.Node + placement.Suffix
}

// units lists the files of the nearest units that e depends on.
func (r *rendering) units(e plan.Entry) []string {
	var out []string
	r.walk(e, func(need plan.Entry) bool {
		u, isUnit := need.Item.(plan.Unit)
		if isUnit && !slices.Contains(out, r.file(u.Name)) {
			out = append(out, r.file(u.Name))
		}
		return !isUnit
	})
	return out
}

// closure lists what e needs and no unit before it provides, in the order of the plan.
func (r *rendering) closure(e plan.Entry) []plan.Entry {
	mine := map[plan.Ref]bool{}
	r.walk(e, func(need plan.Entry) bool {
		_, isUnit := need.Item.(plan.Unit)
		mine[need.Ref] = !isUnit
		return !isUnit
	})
	var out []plan.Entry
	for _, x := range r.plan.Entries {
		if mine[x.Ref] {
			out = append(out, x)
		}
	}
	return out
}

// walk visits what e needs, directly and through other entries, each once. It does not follow entries for
// which visit returns false.
func (r *rendering) walk(e plan.Entry, visit func(need plan.Entry) (further bool)) {
	seen := map[plan.Ref]bool{}
	var step func(e plan.Entry)
	step = func(e plan.Entry) {
		for _, ref := range e.Needs {
			if seen[ref] {
				continue
			}
			seen[ref] = true
			if need := r.entries[ref]; visit(need) {
				step(need)
			}
		}
	}
	step(e)
}

// needed reports whether some unit provides the entry.
func (r *rendering) needed(ref plan.Ref) bool {
	return slices.ContainsFunc(r.plan.Entries, func(e plan.Entry) bool {
		if _, isUnit := e.Item.(plan.Unit); !isUnit {
			return false
		}
		return slices.ContainsFunc(r.closure(e), func(x plan.Entry) bool { return x.Ref == ref })
	})
}

// prepare writes the commands that provide one entry.
func (r *rendering) prepare(w *writer, e plan.Entry) error {
	switch it := e.Item.(type) {
	case plan.Dir:
		w.set("ExecStartPre", fmt.Sprintf("/bin/mkdir -p -m %04o %s", it.Mode, dollar(it.Path)))
	case plan.File:
		if len(it.Fill) == 0 {
			w.fetch(it.Path, it.Mode, digest(it.Content))
		}
	case plan.StaticPod:
		w.fetch(it.Path, 0o600, digest(it.Manifest))
	case plan.Artifact:
		hex, ok := strings.CutPrefix(it.Digest, "sha256:")
		if !ok || len(hex) != 64 {
			return fmt.Errorf("render %s: its digest is unknown: run slipway bundle build first", e.Ref)
		}
		w.fetch(it.Path, 0o755, hex)
	default:
	}
	return nil
}

// fetch writes a command that downloads a file unless it exists with the right content. It downloads to a
// temporary file, verifies it, sets the mode and renames it: the old file stays in use until then, and no
// network is needed if nothing changed.
func (w *writer) fetch(at string, mode uint32, hex string) {
	tmp := path.Dir(at) + "/." + path.Base(at) + ".new"
	script := strings.Join([]string{
		"f=" + single(at), "t=" + single(tmp), "s=" + hex,
		`echo "$s  $f" | sha256sum -c --status 2>/dev/null && exit 0`,
		`mkdir -p ` + single(path.Dir(at)),
		`curl -fsSL --retry 3 -o "$t" "${SLIPWAY_STORE:?set SLIPWAY_STORE=https://… in ` + storeFile + `}/sha256/$s"`,
		`echo "$s  $t" | sha256sum -c --status`,
		fmt.Sprintf(`chmod %04o "$t"`, mode), `mv -f "$t" "$f"`,
	}, "; ")
	w.set("ExecStartPre", "/bin/sh -ec "+dollar(script))
}

// dollar quotes a word and escapes dollar signs from systemd, so that the command receives them.
func dollar(s string) string { return strings.ReplaceAll(quoted(s), "$", "$$") }
