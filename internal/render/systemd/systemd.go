// SPDX-License-Identifier: Apache-2.0

// Package systemd generates unit files: the agent's, those of a plan's units, and those of two targets that
// other units may wait for. It is pure: it never inspects a machine or talks to systemd, and the same plan
// always gives the same bytes.
//
// All names start with "slipway-", so that they never clash with units of the distribution such as
// containerd.service. Every unit is in slipway.slice.
//
// Read [Service] first, which backend/systemd writes on a live machine; [Render] renders a whole plan as files.
//
//	os.WriteFile("/etc/systemd/system/slipway-agent.service", systemd.AgentService("/usr/local/bin/slipway"), 0o644)
package systemd

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/render"
)

// Names of units that are not part of a plan.
const (
	AgentUnit     = "slipway-agent.service"
	Slice         = "slipway.slice"
	NodeTarget    = "slipway.target"         // active while the node works
	ClusterTarget = "slipway-cluster.target" // active while the cluster works, as seen from this node
	Prefix        = "slipway-"
)

// ServiceName is the name of the service for a plan's unit.
func ServiceName(prefix, unit string) string { return prefix + unit + ".service" }

// AgentService is the agent's unit, the only one that is enabled: a boot starts the agent, and the agent
// starts everything else. exe is the path of the slipway executable. Restarting the agent does not affect the
// units it has started.
func AgentService(exe string) []byte {
	return []byte(head + `[Unit]
Description=Slipway node agent
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart=` + quote(exe) + ` agent
Environment=` + quoteEnv("PATH="+path.Dir(exe)+":"+usualPath) + `
Slice=` + Slice + `
Restart=always
RestartSec=50ms
KillMode=process
Delegate=yes
TasksMax=infinity
LimitNOFILE=1048576
TimeoutStartSec=infinity
TimeoutStopSec=30s

[Install]
WantedBy=multi-user.target
`)
}

// usualPath is the PATH of the distribution's programs.
const usualPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

const head = "# Written by slipway, which overwrites changes.\n"

// SliceUnit is the slice that contains all units.
func SliceUnit() []byte {
	return []byte(head + "[Unit]\nDescription=Slipway components of this node\n")
}

// NodeTargetUnit is the target of the node. The agent starts it while every item of the node's plan is ready
// and stops it otherwise. No other unit pulls it in, so the target being active means that the node works.
func NodeTargetUnit(services []string) []byte {
	return target("Slipway node is ready", services)
}

// ClusterTargetUnit is the target of the cluster: it is active after the end-to-end check has passed. node is
// the node's target.
func ClusterTargetUnit(node string) []byte {
	return target("Slipway cluster is ready", []string{node})
}

// target wants the units it represents, so that systemctl list-dependencies shows them. It does not require
// them: the agent decides when the target starts.
func target(description string, wants []string) []byte {
	var b strings.Builder
	b.WriteString(head + "[Unit]\nDescription=" + description + "\nStartLimitIntervalSec=0\n")
	for _, w := range wants {
		b.WriteString("Wants=" + w + "\nAfter=" + w + "\n")
	}
	return []byte(b.String())
}

// componentPod: the kubelet identifies a component's pod by values that the agent or the staticpod format
// puts in its manifest.
const componentPod = "the control plane runs as static pods: use --format staticpod, or run the agent"

const (
	unitDir      = "etc/systemd/system/"
	tmpfilesPath = "etc/tmpfiles.d/slipway.conf"
)

// Render renders a plan as files relative to a machine's root directory: services, mounts, the node's target,
// tmpfiles.d and the plan's files. It omits what only the machine itself can make, with the reason.
func Render(p plan.Plan) (render.Rendered, error) {
	r := rendering{plan: p}
	for _, e := range p.Entries {
		r.entry(e)
	}
	if len(r.tmpfiles) > 0 {
		r.out.Add(tmpfilesPath, 0o644, head+strings.Join(r.tmpfiles, ""), r.dirs...)
	}
	if len(r.services) > 0 {
		r.out.Add(unitDir+Slice, 0o644, string(SliceUnit()))
		r.out.Add(unitDir+NodeTarget, 0o644, string(NodeTargetUnit(r.services))+"\n[Install]\nWantedBy=multi-user.target\n")
	}
	return r.out.Finish(p)
}

// rendering is the state of Render.
type rendering struct {
	plan     plan.Plan
	out      render.Rendered
	services []string
	tmpfiles []string
	dirs     []plan.Ref
}

// entry adds or omits one entry of the plan.
func (r *rendering) entry(e plan.Entry) {
	switch it := e.Item.(type) {
	case plan.Dir:
		r.tmpfiles = append(r.tmpfiles, fmt.Sprintf("d %s %04o root root -\n", tmpfilesWord(it.Path), it.Mode))
		r.dirs = append(r.dirs, e.Ref)
	case plan.File:
		if len(it.Fill) > 0 {
			r.out.Omit(e.Ref, "the file contains a secret of the node: the agent writes it")
			return
		}
		r.out.Add(strings.TrimPrefix(it.Path, "/"), it.Mode, it.Content, e.Ref)
	case plan.StaticPod:
		if it.Component {
			r.out.Omit(e.Ref, componentPod)
			return
		}
		r.out.Add(strings.TrimPrefix(it.Path, "/"), 0o600, it.Manifest, e.Ref)
	case plan.Mount:
		r.out.Add(unitDir+pathUnit(it.Target, ".mount"), 0o644, mount(it), e.Ref)
	case plan.Unit:
		r.unit(e, it)
	case plan.Artifact:
		r.out.Omit(e.Ref, fmt.Sprintf("%s is %s in the component store: the agent installs it, or copy it to the path yourself", it.Name, it.Digest))
	case plan.Cert:
		r.out.Omit(e.Ref, "keys are generated on the node that uses them: the agent makes them")
	case plan.Kubeconfig:
		r.out.Omit(e.Ref, "it contains the node's own key: the agent writes it")
	case plan.Precondition:
		r.out.Omit(e.Ref, "provided by "+it.Provider+"; systemd cannot wait for it, so the units that need it must retry")
	}
}

// unit adds the service of a unit, ordered after the units and mounts that it needs.
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
	text := Service(u, Options{Before: dataGuard(u.DataGuard), After: after, Mounts: mounts})
	r.out.Add(unitDir+name, 0o644, string(text), e.Ref)
	r.services = append(r.services, name)
	slices.Sort(r.services)
}

// dataGuard is a command that fails if the unit's data is lost. It replaces the agent's data guard.
func dataGuard(h plan.DataGuard) []string {
	if h.Mark == "" {
		return nil
	}
	return []string{"/bin/sh", "-c", `test ! -e "$1" || test -e "$2"`, "data-guard", h.Mark, h.Data}
}

// mount is the text of a mount unit.
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

// pathUnit is the unit name that systemd requires for a path. See systemd.unit(5), "String escaping".
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

// tmpfilesWord escapes a path for tmpfiles.d, where % starts a specifier and a space ends the field.
func tmpfilesWord(path string) string {
	return strings.NewReplacer("%", "%%", `\`, `\\`, " ", `\x20`, "\t", `\t`, "\n", `\n`, `"`, `\"`, "'", `\'`).Replace(path)
}
