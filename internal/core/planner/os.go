// SPDX-License-Identifier: Apache-2.0

package planner

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/spec"
)

// Files that restore at a reboot what the tasks have set, before the agent runs.
const (
	modulesFile = "/etc/modules-load.d/slipway.conf"
	sysctlsFile = "/etc/sysctl.d/90-slipway.conf"
	limitsFile  = "/etc/security/limits.d/90-slipway.conf"
)

// UnitLimits is the file with the limits of the components: a systemd drop-in for all services whose names begin with
// slipway-, which Slipway's own supervisor also reads.
const UnitLimits = "/etc/systemd/system/slipway-.service.d/90-limits.conf"

// taskCommand is the hidden command that runs a task of package node/prepare.
const taskCommand = "node-task"

// os adds the preparation of the operating system. It costs the start no time: each item checks first whether its work is
// done, and what depends on it starts later anyway.
func (n *node) os() {
	c := n.cfg.Cluster.OS
	n.clock(c)
	n.modules(c)
	n.sysctls(c)
	n.packages(c)
	n.accounts(c)
	n.userDirectories(c)
	n.limits(c)
	n.swap(c)
	if c.Hostname == spec.HostnameNode {
		n.prepared = append(n.prepared, n.task("os-hostname", []string{"hostname", n.cfg.Name}, 0))
	}
}

// task adds a oneshot of Slipway's own binary. Its readiness probe has the same arguments.
func (n *node) task(name string, words []string, limit time.Duration, needs ...plan.Ref) plan.Ref {
	return n.AddWithDeadline(limit, plan.Unit{
		Name: name, Oneshot: true, KillChildren: true,
		Args:  append([]string{config.SlipwayBinary, taskCommand}, words...),
		Ready: plan.Probe{Kind: plan.ProbeTask, Args: words},
	}, needs...)
}

// clock delays certificates until the clock is synchronised.
func (n *node) clock(c spec.OS) {
	if c.TimeSync != spec.TimeRequire {
		return
	}
	n.timeSync = n.Add(plan.Precondition{
		Name: "time-sync", Provider: "the machine's time daemon (chrony, systemd-timesyncd)",
		Ready: plan.Probe{Kind: plan.ProbeTask, Args: []string{"time-sync"}},
	})
	n.prepared = append(n.prepared, n.timeSync)
}

func (n *node) modules(c spec.OS) {
	words, text := []string{"modules"}, strings.Builder{}
	text.WriteString("# Written by slipway; see \"slipway why os.modules\".\n")
	for _, m := range c.Modules {
		words = append(words, optional(config.OptionalModule(m), m))
		text.WriteString(m + "\n")
	}
	n.osModules = n.task("os-modules", words, 0)
	n.prepared = append(n.prepared, n.osModules)
	n.file(modulesFile, 0o644, text.String())
}

// sysctls come after the modules, which add some of them.
func (n *node) sysctls(c spec.OS) {
	words, text := []string{"sysctls"}, strings.Builder{}
	text.WriteString("# Written by slipway; see \"slipway why os.sysctls\".\n")
	for _, name := range sorted(c.Sysctls) {
		if values := c.Sysctls[name]; len(values) > 0 {
			may := n.cfg.Cluster.OptionalSysctl(name)
			words = append(words, optional(may, name+"="+values[0]))
			text.WriteString(optional(may, name+" = "+values[0]) + "\n")
		}
	}
	if len(words) > 1 {
		n.prepared = append(n.prepared, n.task("os-sysctls", words, 0, n.osModules))
		n.file(sysctlsFile, 0o644, text.String())
	}
}

// optional marks what may fail, as in sysctl.d(5).
func optional(may bool, word string) string {
	if may {
		return "-" + word
	}
	return word
}

// packages gives each machine all lists: the machine knows its package manager.
func (n *node) packages(c spec.OS) {
	const limit = 20 * time.Minute // another process may hold the lock, and mirrors can be slow
	words := []string{"packages"}
	some := false
	for _, manager := range sorted(c.Packages) {
		words = append(words, manager+"="+strings.Join(c.Packages[manager], ","))
		some = some || len(c.Packages[manager]) > 0
	}
	if some {
		n.osPackages = []plan.Ref{n.task("os-packages", words, limit)}
		n.prepared = append(n.prepared, n.osPackages...)
	}
}

// accounts come after packages, which may create groups.
func (n *node) accounts(c spec.OS) {
	if len(c.Groups)+len(c.Users) == 0 {
		return
	}
	doc := struct {
		Groups []spec.Group `json:"groups,omitempty"`
		Users  []spec.User  `json:"users,omitempty"`
	}{c.Groups, c.Users}
	text, err := json.Marshal(doc)
	if err != nil {
		panic("planner: " + err.Error()) // texts and numbers always encode
	}
	n.osAccounts = []plan.Ref{n.task("os-accounts", []string{"accounts", string(text)}, 0, n.osPackages...)}
	n.prepared = append(n.prepared, n.osAccounts...)
}

func (n *node) userDirectories(c spec.OS) {
	made := map[string]plan.Ref{}
	byPath := map[string]spec.Directory{}
	for _, f := range c.Directories {
		byPath[f.Path] = f
	}
	for _, path := range sorted(byPath) { // a parent sorts before its children
		f, needs := byPath[path], n.osAccounts
		for parent, ref := range made {
			if strings.HasPrefix(path, parent+"/") {
				needs = append(needs[:len(needs):len(needs)], ref)
			}
		}
		made[path] = n.Add(plan.Dir{Path: path, Mode: uint32(f.Mode), Owner: f.Owner, Group: f.Group}, sortedRefs(needs)...)
		n.prepared = append(n.prepared, made[path])
	}
}

// limits of sessions are PAM's; the supervisor sets those of the components.
func (n *node) limits(c spec.OS) {
	if len(c.Limits) == 0 {
		return
	}
	sessions, units := "# Written by slipway; see \"slipway why os.limits\".\n", "# Written by slipway; see \"slipway why os.limits\".\n[Service]\n"
	for _, name := range sorted(c.Limits) {
		for _, who := range []string{"*", "root"} { // the asterisk does not include root
			sessions += fmt.Sprintf("%s - %s %s\n", who, name, c.Limits[name])
		}
		if unit, ok := unitLimit(name); ok {
			units += unit + "=" + strings.ReplaceAll(c.Limits[name], "unlimited", "infinity") + "\n"
		}
	}
	n.file(limitsFile, 0o644, sessions)
	n.limited = n.file(UnitLimits, 0o644, units)
}

// unitLimit returns systemd's name of a limit that has the same unit of measure as PAM's. Others are in bytes in systemd and
// in KiB in PAM.
func unitLimit(name string) (string, bool) {
	switch name {
	case "nofile", "nproc", "locks", "sigpending", "rtprio", "msgqueue":
		return "Limit" + strings.ToUpper(name), true
	}
	return "", false
}

func (n *node) swap(c spec.OS) {
	switch c.Swap {
	case spec.SwapOff:
		n.prepared = append(n.prepared, n.task("os-swap", []string{"swap-off"}, 0))
	case spec.SwapRequire:
		n.prepared = append(n.prepared, n.Add(plan.Precondition{
			Name: "swap", Provider: "the machine's administrator", Ready: plan.Probe{Kind: plan.ProbeTask, Args: []string{"swap-on"}},
		}))
	}
}
