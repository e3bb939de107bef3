// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/core/distro"
)

const (
	maxID    = 1<<31 - 2
	maxAsset = 256 << 10 // plans travel, and are in memory as a whole
)

func limitNames() []string {
	return []string{"as", "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc", "rss", "rtprio", "sigpending", "stack"}
}

func (k *checker) os() {
	const at = "spec.os"
	in := &k.out.OS
	seen := map[string]string{}
	for i, name := range in.Modules {
		here := Element(at+".modules", i)
		if !isModule(name) {
			k.say(here, "letters, digits, dashes and underscores", "%s is not the name of a kernel module", show(name))
		}
		unique(k, here, name, here, seen)
	}
	k.sysctls(at+".sysctls", in.Sysctls)
	for _, manager := range slices.Sorted(maps.Keys(in.Packages)) {
		list := Child(at+".packages", manager)
		if !k.oneOf(list, "package manager", manager, distro.Names()...) {
			continue
		}
		seen := map[string]string{}
		for i, name := range in.Packages[manager] {
			here := Element(list, i)
			if !isPackage(name) {
				k.say(here, "write the name only, without options or version", "%s is not the name of a package", show(name))
			}
			unique(k, here, name, here, seen)
		}
	}
	k.accounts(*in)
	k.directories(in.Directories)
	for _, name := range slices.Sorted(maps.Keys(in.Limits)) {
		here := Child(at+".limits", name)
		k.oneOf(here, "limit", name, limitNames()...)
		if v := in.Limits[name]; v != "unlimited" && !isDigits(v) {
			k.say(here, "write a number or unlimited", "%s is not a limit", show(v))
		}
	}
	for _, x := range []struct {
		field, word string
		known       []string
	}{
		{"timeSync", in.TimeSync, []string{TimeRequire, TimeIgnore}},
		{"swap", in.Swap, []string{SwapOff, SwapAllow, SwapRequire}},
		{"hostname", in.Hostname, []string{HostnameKeep, HostnameNode}},
	} {
		if k.out.IsSet(at + "." + x.field) {
			k.oneOf(at+"."+x.field, "value", x.word, x.known...)
		}
	}
}

func (k *checker) sysctls(path string, in map[string]Values) {
	for _, name := range slices.Sorted(maps.Keys(in)) {
		at, values := Child(path, name), in[name]
		if !isSysctl(name) {
			k.say(at, "write one such as net.ipv4.ip_forward", "%s is not the name of a sysctl", show(name))
		}
		switch {
		case values == nil:
		case len(values) != 1 || k.out.IsSet(Element(at, 0)):
			k.say(at, "put several words in quotes: \"4096 87380 6291456\"", "is a list")
		default:
			k.line(at, values[0])
			if strings.TrimSpace(values[0]) == "" {
				k.say(at, "write null to remove a default", "is empty")
			}
			if strings.Contains(values[0], "${") {
				k.say(at, "write the value out", "a sysctl is the same on every machine")
			}
		}
	}
}

// accounts checks groups and users: names and numbers are unique.
func (k *checker) accounts(in OS) {
	names, numbers := map[string]string{}, map[int]string{}
	for i, g := range in.Groups {
		at := Element("spec.os.groups", i)
		k.account(at, g.Name, names)
		k.accountNumber(at, ".gid", g.GID, numbers)
	}
	names, numbers = map[string]string{}, map[int]string{}
	for i, u := range in.Users {
		at := Element("spec.os.users", i)
		k.account(at, u.Name, names)
		k.accountNumber(at, ".uid", u.UID, numbers)
		if k.out.IsSet(at + ".group") {
			k.accountName(at+".group", u.Group)
		}
		for n, g := range u.Groups {
			k.accountName(Element(at+".groups", n), g)
		}
		if k.out.IsSet(at + ".home") {
			k.absolute(at+".home", u.Home)
		}
		if k.out.IsSet(at + ".shell") {
			k.absolute(at+".shell", u.Shell)
		}
	}
}

func (k *checker) account(at, name string, seen map[string]string) {
	if !k.out.IsSet(at + ".name") {
		k.missing(at, "name", "")
		return
	}
	k.accountName(at+".name", name)
	if name == "root" {
		k.say(at+".name", "choose another", "root exists on every machine and cannot be changed")
	}
	unique(k, at+".name", name, at, seen)
}

func (k *checker) accountName(at, name string) {
	if !isAccount(name) {
		k.say(at, accountHint, "%s is not the name of a user or group", show(name))
	}
}

func (k *checker) accountNumber(owner, field string, n int, seen map[int]string) {
	at := owner + field
	if !k.out.IsSet(at) || k.refused[at] {
		return
	}
	if n < 1 || n > maxID {
		k.say(at, "choose 1 to "+strconv.Itoa(maxID), "%d is not the number of a user or group", n)
	}
	unique(k, at, n, owner, seen)
}

// absolute checks a path that becomes part of plans, files and command lines.
func (k *checker) absolute(at, p string) bool {
	k.line(at, p)
	switch {
	case !strings.HasPrefix(p, "/") || path.Clean(p) != p:
		k.say(at, "begin with a slash, without dots and double slashes", "%s is not an absolute path", show(p))
	case strings.ContainsAny(p, "$:\"'\\"):
		k.say(at, "use other characters", "%s contains characters that are special in shells and account files", show(p))
	default:
		return true
	}
	return false
}

func (k *checker) directories(in []Directory) {
	seen := map[string]string{}
	for i, f := range in {
		at := Element("spec.os.directories", i)
		k.ownPath(at, f.Path, reservedDirectory, "choose another directory", seen)
		if k.out.IsSet(at + ".owner") {
			k.accountName(at+".owner", f.Owner)
		}
		if k.out.IsSet(at + ".group") {
			k.accountName(at+".group", f.Group)
		}
	}
}

// ownPath checks the path of a user's file or directory: absolute, given once, and not reserved.
func (k *checker) ownPath(at, p string, reserved func(string) string, hint string, seen map[string]string) {
	if !k.out.IsSet(at + ".path") {
		k.missing(at, "path", "")
		return
	}
	if !k.absolute(at+".path", p) {
		return
	}
	if why := reserved(p); why != "" {
		k.say(at+".path", hint, "%s %s", p, why)
	}
	unique(k, at+".path", p, at, seen)
}

// reservedDirectory returns why a spec may not change a directory; empty: it may.
func reservedDirectory(p string) string {
	for _, own := range []string{
		"/etc/kubernetes", "/etc/containerd", "/etc/cni", "/opt/slipway", "/opt/cni", "/run/slipway", "/run/containerd", "/var/lib/slipway",
		"/var/lib/kubelet", "/var/lib/containerd", "/var/lib/etcd", "/var/lib/cni", "/var/log/kubernetes", "/var/log/slipway",
	} {
		if p == own || strings.HasPrefix(p, own+"/") {
			return "belongs to slipway"
		}
	}
	for _, kernel := range []string{"/proc", "/sys", "/dev"} {
		if p == kernel || strings.HasPrefix(p, kernel+"/") {
			return "belongs to the kernel"
		}
	}
	system := strings.Fields("/ /bin /boot /etc /home /lib /lib64 /media /mnt /opt /root /run /sbin /srv /tmp /usr /var /usr/bin /usr/lib /usr/local /usr/sbin" +
		" /usr/share /usr/local/bin /var/cache /var/lib /var/log /var/run /var/spool /var/tmp /etc/systemd /etc/sysctl.d /etc/security")
	if slices.Contains(system, p) {
		return "belongs to the distribution"
	}
	return ""
}

// reservedFile returns why a spec may not write a file; empty: it may. A path that is a directory on every machine is
// refused as well.
func reservedFile(p string) string {
	if why := reservedDirectory(path.Dir(p)); why == "belongs to slipway" || why == "belongs to the kernel" {
		return why
	}
	return reservedDirectory(p)
}

func (k *checker) fileAssets() {
	seen := map[string]string{}
	for i, f := range k.out.FileAssets {
		at := Element("spec.fileAssets", i)
		k.ownPath(at, f.Path, reservedFile, "choose a directory of your own, such as /etc/NAME", seen)
		if !k.out.IsSet(at + ".content") {
			k.missing(at, "content", "write the text: content: |")
		} else if len(f.Content) > maxAsset {
			k.say(at+".content", "distribute it in another way, such as a package", "is longer than %d KiB", maxAsset>>10)
		}
		k.roles(at, f.Roles)
	}
}

func (k *checker) hooks() {
	const longest = 40 // the name becomes part of a unit's name
	seen := map[string]string{}
	for i, h := range k.out.Hooks {
		at := Element("spec.hooks", i)
		k.uniqueLabel(at, h.Name, seen)
		if len(h.Name) > longest {
			k.say(at+".name", "", "is longer than %d characters", longest)
		}
		k.phase(at, h)
		k.command(at, h.Command)
		k.roles(at, h.Roles)
		if path := at + ".timeout"; k.out.IsSet(path) && (h.Timeout < time.Second || h.Timeout > time.Hour) {
			k.say(path, "choose 1s to 1h, such as 30s or 10m", "%s is not a usable timeout", h.Timeout)
		}
	}
}

func (k *checker) phase(at string, h Hook) {
	before, after := k.out.IsSet(at+".before"), k.out.IsSet(at+".after")
	switch {
	case before && after:
		k.say(at+".after", "make two hooks", "a hook runs either before or after a phase")
	case !before && !after:
		k.missing(at, "before", "write before: or after: with one of "+strings.Join(Phases(), ", "))
	}
	for _, x := range []struct {
		field, phase string
		set          bool
	}{{"before", h.Before, before}, {"after", h.After, after}} {
		if !x.set || !k.oneOf(at+"."+x.field, "phase", x.phase, Phases()...) {
			continue
		}
		if x.field == "before" && x.phase == PhaseNodeReady {
			k.say(at+".before", "write after: node-ready, or before: kubelet", "a hook cannot delay node-ready: the node becomes ready without slipway")
		}
		if only := x.phase == PhaseEtcd || x.phase == PhaseControlPlane; only && len(h.Roles) > 0 && !slices.Contains(h.Roles, RoleControlPlane) {
			k.say(at+".roles", "add control-plane, or choose another phase", "only control planes have the phase %s", x.phase)
		}
	}
}

func (k *checker) command(at string, command []string) {
	if len(command) == 0 {
		k.missing(at, "command", "write the program and its arguments: [/bin/sh, -c, …]")
		return
	}
	if !strings.HasPrefix(command[0], "/") {
		k.say(Element(at+".command", 0), "write the program's absolute path, or /bin/sh, -c and a command line", "%s is not an absolute path", show(command[0]))
	}
	for i, word := range command {
		here := Element(at+".command", i)
		if strings.ContainsFunc(word, func(r rune) bool { return r != '\n' && r != '\t' && isControl(r) }) {
			k.say(here, "remove them", "%s contains control characters", show(word))
		}
		for { // only ${node…}: shells have their own ${…}
			_, rest, ok := strings.Cut(word, "${node")
			if !ok {
				break
			}
			name, after, _ := strings.Cut(rest, "}")
			k.oneOf(here, "placeholder", "${node"+name+"}", "${node.name}", "${node.address}", "${node.podCIDR}")
			word = after
		}
	}
}
