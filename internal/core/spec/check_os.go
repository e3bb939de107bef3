// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"maps"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/api/cluster/v1alpha1"
	"github.com/slipway-project/slipway/internal/core/distro"
)

func (k *checker) os(in v1alpha1.OS) {
	const at = "spec.os"
	k.out.OS = OS{Modules: in.Modules, Limits: in.Limits, TimeSync: in.TimeSync, Swap: in.Swap, Hostname: in.Hostname}
	k.modules(at+".modules", in.Modules)
	k.sysctls(at+".sysctls", in.Sysctls)
	k.packages(at+".packages", in.Packages)
	k.accounts(in)
	k.folders(at+".folders", in.Folders)
	k.limits(at+".limits", in.Limits)
	for _, x := range []struct {
		field, word string
		known       []string
	}{
		{"timeSync", in.TimeSync, []string{TimeRequire, TimeIgnore}},
		{"swap", in.Swap, []string{SwapOff, SwapAllow, SwapRequire}},
		{"hostname", in.Hostname, []string{HostnameKeep, HostnameNode}},
	} {
		if k.out.Said(at + "." + x.field) {
			k.oneOf(at+"."+x.field, "rule", x.word, x.known...)
		}
	}
}

func (k *checker) modules(path string, in []string) {
	seen := map[string]string{}
	for i, name := range in {
		at := Element(path, i)
		if !isModule(name) {
			k.say(at, "letters, digits, dashes and underscores", "%s is not the name of a kernel module", show(name))
		}
		unique(k, at, name, at, seen)
	}
}

func (k *checker) sysctls(path string, in map[string]any) {
	if in == nil {
		return
	}
	k.out.OS.Sysctls = make(map[string][]string, len(in))
	for _, name := range slices.Sorted(maps.Keys(in)) {
		at := Child(path, name)
		if !isSysctl(name) {
			k.say(at, "write one such as net.ipv4.ip_forward", "%s is not the name of a sysctl", show(name))
		}
		switch v := in[name].(type) {
		case nil:
			k.out.OS.Sysctls[name] = nil
		case string:
			k.line(at, v)
			if strings.TrimSpace(v) == "" {
				k.say(at, "write null to leave a default away", "is empty")
			}
			if strings.Contains(v, "${") {
				k.say(at, "write the value out", "a sysctl is the same on every machine")
			}
			k.out.OS.Sysctls[name] = []string{v}
		default:
			k.say(at, "put several words in quotes: \"4096 87380 6291456\"", "is a list")
		}
	}
}

func (k *checker) packages(path string, in map[string][]string) {
	for _, manager := range slices.Sorted(maps.Keys(in)) {
		at := Child(path, manager)
		if !k.oneOf(at, "package manager", manager, distro.Names()...) {
			continue
		}
		if k.out.OS.Packages == nil {
			k.out.OS.Packages = map[string][]string{}
		}
		k.out.OS.Packages[manager] = in[manager]
		seen := map[string]string{}
		for i, name := range in[manager] {
			if !isPackage(name) {
				k.say(Element(at, i), "write its name alone: no options, no version", "%s is not the name of a package", show(name))
			}
			unique(k, Element(at, i), name, Element(at, i), seen)
		}
	}
}

func (k *checker) limits(path string, in map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(in)) {
		at := Child(path, name)
		k.oneOf(at, "limit", name, LimitNames()...)
		if v := in[name]; v != "unlimited" && !isDigits(v) {
			k.say(at, "write a number or unlimited", "%s is no limit", show(v))
		}
	}
}

func isModule(s string) bool {
	return only(s, func(r rune) bool { return letter(r) || digit(r) || r == '-' || r == '_' }) && s[0] != '-' && len(s) < 64
}

// isSysctl: at least two words of a path below /proc/sys, joined by dots. A slash within a word stands for the dot in an
// interface's name, as for sysctl(8).
func isSysctl(s string) bool {
	words := strings.Split(s, ".")
	for _, w := range words {
		if !only(w, func(r rune) bool { return letter(r) || digit(r) || strings.ContainsRune("_-/:@", r) }) || w[0] == '-' || w[0] == '/' {
			return false
		}
	}
	return len(words) > 1
}

func isPackage(s string) bool {
	return only(s, func(r rune) bool { return letter(r) || digit(r) || strings.ContainsRune("+-._", r) }) && (letter(rune(s[0])) || digit(rune(s[0])))
}
