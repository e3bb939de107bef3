// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/slipway-project/slipway/internal/node/facts"
)

// manager is a distribution's package manager.
type manager struct {
	name    string
	install []string // packages are appended
	refresh []string // nil: it refreshes by itself
}

func (m manager) command(packages ...string) string {
	return strings.Join(append(append([]string{}, m.install...), packages...), " ")
}

// packageManager chooses by /etc/os-release; the zero manager is an unknown distribution.
func (h host) packageManager() manager {
	switch name := facts.FindDistribution(h.root).Manager; name {
	case "apt":
		return manager{name, []string{"apt-get", "install", "-y", "--no-install-recommends"}, []string{"apt-get", "update"}}
	case "dnf":
		return manager{name, []string{"dnf", "install", "-y"}, nil}
	case "zypper":
		return manager{name, []string{"zypper", "--non-interactive", "install"}, nil}
	case "apk":
		return manager{name, []string{"apk", "add"}, nil}
	}
	return manager{}
}

// packageOf is the package that brings a thing, by package manager; "" where it is not known.
func packageOf(thing, manager string) string {
	return map[string]map[string]string{
		"nft":          {"apt": "nftables", "dnf": "nftables", "zypper": "nftables", "apk": "nftables"},
		"systemd":      {"apt": "systemd", "dnf": "systemd", "zypper": "systemd"},
		"mount":        {"apt": "mount", "dnf": "util-linux", "zypper": "util-linux", "apk": "util-linux"},
		"gcc":          {"apt": "gcc", "dnf": "gcc", "zypper": "gcc", "apk": "gcc"},
		"pkg-config":   {"apt": "pkg-config", "dnf": "pkgconf-pkg-config", "zypper": "pkgconf-pkg-config", "apk": "pkgconf"},
		"libc headers": {"apt": "libc6-dev", "dnf": "glibc-devel glibc-static", "zypper": "glibc-devel glibc-devel-static", "apk": "musl-dev linux-headers"},
		"libseccomp":   {"apt": "libseccomp-dev", "dnf": "libseccomp-devel libseccomp-static", "zypper": "libseccomp-devel", "apk": "libseccomp-dev libseccomp-static"},
	}[thing][manager]
}

// missing is the finding for something that a package would bring.
func (h host) missing(id, thing, why string) Finding {
	m := h.packageManager()
	f := Finding{ID: id, Severity: Problem, What: thing + " is missing", Detail: why, Package: packageOf(id, m.name)}
	f.Remedy = "install " + thing + " with your distribution's package manager"
	if f.Package != "" {
		f.Remedy = m.command(strings.Fields(f.Package)...)
	}
	return f
}

// checkPrograms looks only for what runs in every machine.
func checkPrograms(_ context.Context, h host, o Options) []Finding {
	var out []Finding
	if o.Systemd {
		out = append(out, checkSystemd(h))
	}
	for _, p := range []struct{ name, why string }{
		{"nft", "kube-proxy and the CNI plugins program the packet filter with it"},
		{"mount", "the kubelet mounts volumes with it"},
	} {
		f := Finding{ID: p.name, Severity: OK, What: p.name}
		if !h.find(p.name) {
			f = h.missing(p.name, p.name, p.why)
		}
		out = append(out, f)
	}
	return out
}

// checkSystemd looks for systemd's program and for the one that talks to it. It need not run here.
func checkSystemd(h host) Finding {
	if (h.exists("usr/lib/systemd/systemd") || h.exists("lib/systemd/systemd")) && h.find("systemctl") {
		return Finding{ID: "systemd", Severity: OK, What: "systemd"}
	}
	f := h.missing("systemd", "systemd", "machines with --init systemd boot with this host's; it need not be this host's own init")
	if h.packageManager().name == "apk" {
		f.Remedy = "leave --init systemd away: this distribution has no systemd"
	}
	return f
}

// checkBuild looks for what building the components takes: Go for all of them, a C compiler and libseccomp for runc.
func checkBuild(ctx context.Context, h host, o Options) []Finding {
	if !o.NeedBuild {
		return nil
	}
	var out []Finding
	add := func(id, thing, why string, there bool) {
		f := Finding{ID: id, Severity: OK, What: thing}
		if !there {
			f = h.missing(id, thing, why)
		}
		out = append(out, f)
	}
	_, err := exec.LookPath("go")
	goThere := err == nil || h.find("go")
	add("go", "go", "the components are built from source", goThere)
	if !goThere {
		out[0].Remedy, out[0].Package = "install Go as https://go.dev/doc/install says", "" // distributions' versions are too old
	}
	add("gcc", "gcc", "runc is built with it", h.find("gcc"))
	add("libc headers", "the C library's headers", "runc is built with them", h.exists("usr/include/stdio.h"))
	pkgConfig := h.find("pkg-config") || h.find("pkgconf")
	add("pkg-config", "pkg-config", "it tells runc's build where libseccomp is", pkgConfig)
	add("libseccomp", "the static libseccomp", "runc filters system calls with it", h.staticSeccomp(ctx))
	return out
}

// staticSeccomp looks for both libseccomp.pc and libseccomp.a, in the folders of all distributions that are known to us.
func (h host) staticSeccomp(ctx context.Context) bool {
	if h.root == "/" { // pkg-config knows also what $PKG_CONFIG_PATH names
		out, err := exec.CommandContext(ctx, "pkg-config", "--variable=libdir", "libseccomp").Output()
		if err == nil {
			_, err = os.Stat(filepath.Join(strings.TrimSpace(string(out)), "libseccomp.a"))
			return err == nil
		}
	}
	return h.anyOf("pkgconfig/libseccomp.pc") && h.anyOf("libseccomp.a")
}

func (h host) anyOf(name string) bool {
	for _, dir := range []string{"usr/lib", "usr/lib64", "usr/local/lib", "usr/lib/*-linux-gnu*"} {
		if found, _ := filepath.Glob(filepath.Join(h.root, dir, name)); len(found) > 0 {
			return true
		}
	}
	return false
}

func installHint(m manager, packages []string) string {
	if m.refresh == nil {
		return m.command(packages...)
	}
	return fmt.Sprintf("%s && %s", strings.Join(m.refresh, " "), m.command(packages...))
}
