// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"context"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/node/prepare"
)

// prepared is the host as the tasks of a plan see it: the same words ask here and there.
func (h host) prepared() prepare.Host { return prepare.Host{Root: h.root} }

// checkModules looks for the one module that no use of it loads. Local machines load none: the kernel is the host's.
func checkModules(ctx context.Context, h host, _ Options) []Finding {
	const name = "br_netfilter"
	f := Finding{ID: name, Severity: OK, What: name}
	if h.exists("proc/sys/net/bridge") {
		return one(f)
	}
	f.Severity, f.Detail = Warning, "a pod does not reach a Service whose pod is on the same node, the cluster DNS among them"
	if err := h.prepared().Done(ctx, []string{"modules", "-" + name}); err != nil { // the kernel has it
		f.What, f.Module, f.Remedy = name+" is not loaded", name, "modprobe "+name
		return one(f)
	}
	f.What, f.Remedy = "the kernel has no "+name, "use a distribution's ordinary kernel"
	return one(f)
}

// checkTimeSync: a clock may be right without; nobody keeps it so.
func checkTimeSync(ctx context.Context, h host, _ Options) []Finding {
	if err := h.prepared().Done(ctx, []string{"time-sync"}); err != nil {
		return one(Finding{
			ID: "time-sync", Severity: Warning, What: "the clock is not synchronised",
			Detail: "machines whose clocks are apart refuse each other's certificates", Remedy: "timedatectl set-ntp true, or start chrony",
		})
	}
	return one(Finding{ID: "time-sync", Severity: OK, What: "the clock is synchronised"})
}

// checkHostname: nodes have their names from the spec, and people find machines by theirs.
func checkHostname(_ context.Context, h host, _ Options) []Finding {
	name := strings.TrimSpace(h.read("proc/sys/kernel/hostname"))
	short, _, _ := strings.Cut(name, ".")
	if slices.Contains([]string{"", "(none)", "localhost"}, strings.ToLower(short)) {
		return one(Finding{
			ID: "hostname", Severity: Warning, What: "the machine has no name of its own", Detail: "logs and prompts do not tell it from others",
			Remedy: "hostnamectl set-hostname NAME, or spec.os.hostname: node",
		})
	}
	return one(Finding{ID: "hostname", Severity: OK, What: "host name " + name})
}

// Modules lists what Install would load. They are warnings, too: whoever makes the machine a node loads them, and nothing waits.
func Modules(findings []Finding) []string {
	var modules []string
	for _, f := range findings {
		if f.Module != "" && f.Severity != OK {
			modules = append(modules, f.Module)
		}
	}
	return modules
}

// load goes on without the module: what comes of it is said in the findings.
func (in installer) load(ctx context.Context, module string) {
	in.progress("$ modprobe " + module)
	if err := in.host.prepared().Do(ctx, []string{"modules", module}); err != nil {
		in.progress(err.Error())
	}
}

// Fixed marks among the findings of after those that were not well before.
func Fixed(before, after []Finding) []Finding {
	was := map[string]Severity{}
	for _, f := range before {
		was[f.ID] = f.Severity
	}
	out := slices.Clone(after)
	for i, f := range out {
		if s, known := was[f.ID]; f.Severity == OK && known && s != OK {
			out[i].Severity = Mended
		}
	}
	return out
}
