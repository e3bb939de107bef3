// SPDX-License-Identifier: Apache-2.0

// Package distro is the table of package managers: the distributions that have each of them, the
// command lines that query it and install with it, and what it calls the packages that Slipway itself asks
// for. The spec checker, the preflight and the preparation of machines all read this table, so supporting
// another package manager means adding one row to it.
//
// Read [Manager] and [Managers].
//
//	m := distro.FromOSRelease("ID=debian\n")        // m.Name is "apt"
//	m.CommandLine("nftables")                       // apt-get update && apt-get install -y --no-install-recommends nftables
package distro

import (
	"slices"
	"strings"
)

// Manager is a package manager. The zero value means that the package manager is unknown.
type Manager struct {
	Name     string   // its key in spec.os.packages: "apt"
	Families []string // the values of ID or ID_LIKE in os-release of the distributions that have it

	Install    []string // installs the packages whose names are appended
	Unattended []string // options with which Install asks no questions; package names follow them
	Refresh    []string // downloads the package lists; nil: Install does it
	Lists      string   // glob, relative to the root directory, that matches once Refresh has run; "": not needed
	Repair     []string // completes an interrupted installation; nil: not needed
	Env        []string // environment of all these commands

	// A manager has one of these two queries.
	QueryAll []string // prints a line STATUS|NAME|PROVIDES for each package of the database
	Query    []string // exits with 0 if the package whose name is appended is installed

	Packages map[Thing]string // the packages with a thing, separated by spaces; no key: there is no such package
}

// Thing is a program, library or set of files that Slipway, its build or its tests need and that is part of a
// package.
type Thing string

// The things.
const (
	Nft         Thing = "nft"
	Mount       Thing = "mount"
	Systemd     Thing = "systemd"
	GCC         Thing = "gcc"
	PkgConfig   Thing = "pkg-config"
	LibcHeaders Thing = "libc headers"
	Libseccomp  Thing = "libseccomp"
	CACerts     Thing = "CA certificates"

	Git       Thing = "git"
	Make      Thing = "make"
	IP        Thing = "ip"
	PS        Thing = "ps"
	Curl      Thing = "curl"
	Useradd   Thing = "useradd"
	SSHD      Thing = "sshd"
	SSHClient Thing = "ssh"
	Sudo      Thing = "sudo"
	CloudInit Thing = "cloud-init"
	Protoc    Thing = "protoc"
)

// Managers returns the table, in the order in which messages list the names.
func Managers() []Manager {
	return []Manager{
		{
			Name: "apt", Families: []string{"debian", "ubuntu"},
			Install: strings.Fields("apt-get install -y --no-install-recommends"),
			// Wait for another process that holds dpkg's lock, remove nothing, keep edited configuration
			// files.
			Unattended: strings.Fields("--no-remove -o DPkg::Lock::Timeout=300 -o Dpkg::Options::=--force-confold --"),
			Refresh:    strings.Fields("apt-get update -o DPkg::Lock::Timeout=300"),
			Lists:      "var/lib/apt/lists/*_Packages*",
			Repair:     strings.Fields("dpkg --configure -a --force-confold"),
			Env:        []string{"DEBIAN_FRONTEND=noninteractive", "LC_ALL=C"},
			QueryAll:   []string{"dpkg-query", "--show", "--showformat=${db:Status-Status}|${Package}|${Provides}\n"},
			Packages: map[Thing]string{
				Nft: "nftables", Mount: "mount", Systemd: "systemd", GCC: "gcc", PkgConfig: "pkg-config", LibcHeaders: "libc6-dev",
				Libseccomp: "libseccomp-dev", CACerts: "ca-certificates",
				Git: "git", Make: "make", IP: "iproute2", PS: "procps", Curl: "curl", Useradd: "passwd",
				SSHD: "openssh-server", SSHClient: "openssh-client", Sudo: "sudo", CloudInit: "cloud-init",
				Protoc: "protobuf-compiler",
			},
		},
		{
			Name: "dnf", Families: []string{"fedora", "rhel", "centos"},
			Install: strings.Fields("dnf install -y"), Unattended: []string{"--"}, Env: []string{"LC_ALL=C"},
			Query: strings.Fields("rpm --query --quiet --whatprovides"),
			Packages: map[Thing]string{
				Nft: "nftables", Mount: "util-linux", Systemd: "systemd", GCC: "gcc", PkgConfig: "pkgconf-pkg-config",
				LibcHeaders: "glibc-devel glibc-static", Libseccomp: "libseccomp-devel libseccomp-static", CACerts: "ca-certificates",
				Git: "git", Make: "make", IP: "iproute", PS: "procps-ng", Curl: "curl", Useradd: "shadow-utils",
				SSHD: "openssh-server", SSHClient: "openssh-clients openssh", Sudo: "sudo", CloudInit: "cloud-init",
				Protoc: "protobuf-compiler",
			},
		},
		{
			Name: "zypper", Families: []string{"suse", "opensuse"},
			Install: strings.Fields("zypper --non-interactive install"), Unattended: []string{"--"}, Env: []string{"LC_ALL=C", "ZYPP_LOCK_TIMEOUT=300"},
			Query: strings.Fields("rpm --query --quiet --whatprovides"),
			Packages: map[Thing]string{
				Nft: "nftables", Mount: "util-linux", Systemd: "systemd", GCC: "gcc", PkgConfig: "pkgconf-pkg-config",
				LibcHeaders: "glibc-devel glibc-devel-static", Libseccomp: "libseccomp-devel", CACerts: "ca-certificates",
				Git: "git", Make: "make", IP: "iproute2", PS: "procps", Curl: "curl", Useradd: "shadow",
				SSHD: "openssh-server", SSHClient: "openssh-clients openssh-common", Sudo: "sudo", CloudInit: "cloud-init",
				Protoc: "protobuf-devel",
			},
		},
		{
			Name: "apk", Families: []string{"alpine"},
			Install: strings.Fields("apk add"), Unattended: strings.Fields("--wait 300 --"), Refresh: strings.Fields("apk update --wait 300"),
			Query: strings.Fields("apk info --installed --quiet"),
			Packages: map[Thing]string{
				Nft: "nftables", Mount: "util-linux", GCC: "gcc", PkgConfig: "pkgconf", LibcHeaders: "musl-dev linux-headers",
				Libseccomp: "libseccomp-dev libseccomp-static", CACerts: "ca-certificates",
				Git: "git", Make: "make", IP: "iproute2", PS: "procps", Curl: "curl", Useradd: "shadow",
				SSHD: "openssh-server", SSHClient: "openssh-client openssh-keygen", Sudo: "sudo", CloudInit: "cloud-init",
				Protoc: "protoc",
			},
		},
	}
}

// Names returns the names of all package managers, in the order of the table.
func Names() []string {
	var names []string
	for _, m := range Managers() {
		names = append(names, m.Name)
	}
	return names
}

// FromOSRelease returns the package manager of the distribution that the text of os-release(5) describes:
// of its ID, otherwise of the first distribution in ID_LIKE that the table has.
func FromOSRelease(text string) Manager {
	id, like := "", ""
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch value = strings.Trim(value, `"'`); key {
		case "ID":
			id = value
		case "ID_LIKE":
			like = value
		}
	}
	all := Managers()
	for family := range strings.FieldsSeq(id + " " + like) {
		if i := slices.IndexFunc(all, func(m Manager) bool { return slices.Contains(m.Families, family) }); i >= 0 {
			return all[i]
		}
	}
	return Manager{}
}

// CommandLine returns the command that a person types to install packages. It refreshes the package lists
// first if Install does not.
func (m Manager) CommandLine(packages ...string) string {
	line := strings.Join(append(slices.Clone(m.Install), packages...), " ")
	if len(m.Refresh) > 0 {
		line = strings.Join(m.Refresh[:2], " ") + " && " + line // without the options of unattended runs
	}
	return line
}
