// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"os"
	"path/filepath"
	"strings"
)

// Distribution is what /etc/os-release says of a machine's root.
type Distribution struct {
	ID      string // "debian"; empty: it is not known
	Name    string // for people: "Debian GNU/Linux 12 (bookworm)"
	Manager string // its package manager: apt, dnf, zypper, apk; empty: none of these
}

// FindDistribution reads /etc/os-release, or /usr/lib/os-release, of a root. Without either nothing is known.
func FindDistribution(root string) Distribution {
	text, err := os.ReadFile(filepath.Join(root, "etc/os-release"))
	if err != nil {
		text, _ = os.ReadFile(filepath.Join(root, "usr/lib/os-release"))
	}
	return parseDistribution(string(text))
}

func parseDistribution(text string) Distribution {
	var d Distribution
	like := ""
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch value = strings.Trim(value, `"'`); key {
		case "ID":
			d.ID = value
		case "ID_LIKE":
			like = value
		case "PRETTY_NAME":
			d.Name = value
		}
	}
	for id := range strings.FieldsSeq(d.ID + " " + like) {
		if d.Manager = managerOf(id); d.Manager != "" {
			break
		}
	}
	return d
}

// managerOf knows the families: others say in ID_LIKE to which they belong.
func managerOf(id string) string {
	switch id {
	case "debian", "ubuntu":
		return "apt"
	case "fedora", "rhel", "centos":
		return "dnf"
	case "suse", "opensuse":
		return "zypper"
	case "alpine":
		return "apk"
	}
	return ""
}

// SharedKernel tells that the kernel is not this machine's: it runs in a container of a host, as local machines do. The first PID
// namespace has a number that is part of the kernel's interface (PROC_PID_INIT_INO); every container has another one.
func SharedKernel() bool { return sharedKernel("/proc/self/ns/pid") }

func sharedKernel(namespace string) bool {
	const first = "pid:[4026531836]"
	link, err := os.Readlink(namespace)
	return err != nil || link != first // who does not know leaves the kernel alone
}
