// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// sysctlsDone compares with what the kernel says. Words are NAME=VALUE.
func sysctlsDone(_ context.Context, h Host, words []string) error {
	var wrong []string
	for _, s := range h.differing(words) {
		wrong = append(wrong, s.reason())
	}
	return first(wrong)
}

// setSysctls goes on over what cannot be set, so that one wrong name does not hold up the others.
func setSysctls(_ context.Context, h Host, words []string) error {
	var wrong []string
	for _, s := range h.differing(words) {
		if !s.there {
			wrong = append(wrong, s.reason())
			continue
		}
		if err := os.WriteFile(s.path, []byte(s.want), 0o644); err != nil {
			wrong = append(wrong, fmt.Sprintf("write %s to %s: %v", s.want, s.path, err))
			continue
		}
		was := s.have
		if s.look(); s.have != s.want {
			wrong = append(wrong, fmt.Sprintf("%s: the kernel has made %q of %q", s.name, s.have, s.want))
			continue
		}
		h.say("%s = %s (was %s)", s.name, s.want, was)
	}
	return first(wrong)
}

// sysctl is a setting, wanted and as it is.
type sysctl struct {
	name, path, want, have string
	there                  bool
}

func (s *sysctl) look() {
	data, err := os.ReadFile(s.path)
	s.have, s.there = oneSpaced(string(data)), err == nil
}

func (s *sysctl) reason() string {
	if !s.there {
		return s.name + ": this kernel has no such setting, or not before a module is loaded: see spec.os.modules"
	}
	return fmt.Sprintf("%s is %s, want %s", s.name, s.have, s.want)
}

// differing lists the settings that are not as they should be and are this machine's to change.
func (h Host) differing(words []string) []sysctl {
	var out []sysctl
	for _, word := range words {
		setting, may := lenient(word)
		name, value, _ := strings.Cut(setting, "=")
		if h.Shared && !namespaced(name) {
			continue
		}
		s := sysctl{name: name, path: h.path("/proc/sys/" + sysctlPath(name)), want: oneSpaced(value)}
		s.look()
		if s.there && s.have == s.want || may && (!s.there || unix.Access(s.path, unix.W_OK) != nil) {
			continue
		}
		out = append(out, s)
	}
	return out
}

// sysctlPath: dots part words, and a slash within a word stands for a dot, as in the name of a VLAN's interface.
func sysctlPath(name string) string {
	return strings.Map(func(r rune) rune {
		switch r {
		case '.':
			return '/'
		case '/':
			return '.'
		}
		return r
	}, name)
}

// namespaced settings belong to the machine's own network and IPC namespaces, whoever owns the kernel.
func namespaced(name string) bool {
	for _, prefix := range []string{"net.", "kernel.shm", "kernel.msg", "fs.mqueue."} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return name == "kernel.sem"
}

// oneSpaced: the kernel parts the words of one setting by tabs.
func oneSpaced(s string) string { return strings.Join(strings.Fields(s), " ") }
