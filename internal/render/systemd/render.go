// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"fmt"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/render"
)

// Paths in the folder, which lies over a machine's root.
// componentPod: the kubelet tells pods apart by what the agent, or the form for static pods, puts into the manifest.
const componentPod = "a control plane of static pods: render it with --format staticpod, or leave it to the agent"

const (
	unitFolder   = "etc/systemd/system/"
	tmpfilesPath = "etc/tmpfiles.d/slipway.conf"
)

// Render gives a plan as a folder to lay over a machine's root: services, mounts, the handle of the node, tmpfiles and files. What
// only a machine can make is left out, with the reason.
func Render(p plan.Plan) (render.Rendered, error) {
	r := rendering{plan: p}
	for _, e := range p.Entries {
		r.entry(e)
	}
	if len(r.tmpfiles) > 0 {
		r.out.Add(tmpfilesPath, 0o644, head+strings.Join(r.tmpfiles, ""), r.dirs...)
	}
	if len(r.services) > 0 {
		r.out.Add(unitFolder+Slice, 0o644, string(SliceUnit()))
		r.out.Add(unitFolder+NodeTarget, 0o644, string(NodeTargetUnit(r.services))+"\n[Install]\nWantedBy=multi-user.target\n")
	}
	return r.out.Finish(p)
}

type rendering struct {
	plan     plan.Plan
	out      render.Rendered
	services []string
	tmpfiles []string
	dirs     []plan.Ref
}

func (r *rendering) entry(e plan.Entry) {
	switch it := e.Item.(type) {
	case plan.Dir:
		r.tmpfiles = append(r.tmpfiles, fmt.Sprintf("d %s %04o root root -\n", tmpfilesWord(it.Path), it.Mode))
		r.dirs = append(r.dirs, e.Ref)
	case plan.File:
		if len(it.Fill) > 0 {
			r.out.Leave(e.Ref, "a secret of the node is filled in where the file is used: the agent writes it")
			return
		}
		r.out.Add(strings.TrimPrefix(it.Path, "/"), it.Mode, it.Content, e.Ref)
	case plan.StaticPod:
		if it.Component {
			r.out.Leave(e.Ref, componentPod)
			return
		}
		r.out.Add(strings.TrimPrefix(it.Path, "/"), 0o600, it.Manifest, e.Ref)
	case plan.Mount:
		r.out.Add(unitFolder+pathUnit(it.Target, ".mount"), 0o644, mount(it), e.Ref)
	case plan.Unit:
		r.unit(e, it)
	case plan.Artifact:
		r.out.Leave(e.Ref, fmt.Sprintf("%s is %s in the component store: the agent verifies it and puts it there, or copy it yourself", it.Name, it.Digest))
	case plan.Cert:
		r.out.Leave(e.Ref, "keys are born on the node that uses them and never travel: the agent makes them")
	case plan.Kubeconfig:
		r.out.Leave(e.Ref, "it comes with the node's own key: the agent writes it")
	case plan.Precondition:
		r.out.Leave(e.Ref, it.Provider+" opens it; systemd has no such wait, so what comes after it must try again by itself")
	}
}

func (r *rendering) unit(e plan.Entry, u plan.Unit) {
	find := func(ref plan.Ref) (plan.Entry, bool) { return r.plan.Find(ref.String()) }
	var after []string
	for _, name := range After(e, find) {
		after = append(after, ServiceName(Prefix, name))
	}
	var mounts []string
	for _, need := range e.Needs {
		if entry, ok := find(need); ok && entry.Item.Kind() == plan.KindMount {
			mounts = append(mounts, entry.Item.Key())
		}
	}
	name := ServiceName(Prefix, u.Name)
	text := Service(u, Options{Before: holds(u.DataGuard), After: after, Mounts: mounts})
	r.out.Add(unitFolder+name, 0o644, string(text), e.Ref)
	r.services = append(r.services, name)
	slices.Sort(r.services)
}

// holds refuses a start over lost data where there is no agent to do it.
func holds(h plan.DataGuard) []string {
	if h.Mark == "" {
		return nil
	}
	return []string{"/bin/sh", "-c", `test ! -e "$1" || test -e "$2"`, "holds", h.Mark, h.Data}
}

func mount(m plan.Mount) string {
	var s section
	s.b.WriteString(head + "[Unit]\nDescription=Slipway: " + escapeText(m.Target) + "\n\n[Mount]\n")
	s.set("What", escapeText(m.Source))
	s.set("Where", escapeText(m.Target))
	s.set("Type", escapeText(m.Type))
	if len(m.Options) > 0 {
		s.set("Options", escapeText(strings.Join(m.Options, ",")))
	}
	s.b.WriteString("\n[Install]\nWantedBy=" + NodeTarget + "\n")
	return s.b.String()
}

// pathUnit is the name that systemd demands of the unit for a path. See systemd.unit(5), "String escaping".
func pathUnit(path, suffix string) string {
	path = strings.Trim(path, "/")
	if path == "" {
		return "-" + suffix
	}
	var b strings.Builder
	for i := range len(path) {
		switch c := path[i]; {
		case c == '/':
			b.WriteByte('-')
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == ':', c == '.' && i > 0:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, `\x%02x`, c)
		}
	}
	return b.String() + suffix
}

// tmpfilesWord writes a path so that tmpfiles.d reads exactly it: % begins a specifier there, and a blank ends the word.
func tmpfilesWord(path string) string {
	return strings.NewReplacer("%", "%%", `\`, `\\`, " ", `\x20`, "\t", `\t`, "\n", `\n`, `"`, `\"`, "'", `\'`).Replace(path)
}
