// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/core/distro"
	"github.com/slipway-project/slipway/internal/node/facts"
)

// need is something that a package of the distribution brings.
type need struct {
	thing    distro.Thing
	name     string // for people
	why      string
	programs []string // all of them must exist
	files    []string // globs below the root directory; one of them must match
}

// machineNeeds lists what runs in every machine.
func machineNeeds() []need {
	return []need{
		{thing: distro.Nft, name: "nft", why: "kube-proxy and the CNI plugins configure the packet filter with it", programs: []string{"nft"}},
		{thing: distro.Mount, name: "mount", why: "the kubelet mounts volumes with it", programs: []string{"mount"}},
	}
}

// systemdNeed is what machines that boot with systemd need. It need not be the host's own init.
func systemdNeed() need {
	return need{
		thing: distro.Systemd, name: "systemd", why: "machines with --init systemd boot with this host's; it need not be this host's own init",
		programs: []string{"systemctl", "journalctl", "systemd-analyze"}, files: []string{"usr/lib/systemd/systemd", "lib/systemd/systemd"},
	}
}

// buildNeeds lists what building the components takes, apart from Go.
func buildNeeds() []need {
	return []need{
		{thing: distro.GCC, name: "gcc", why: "runc is built with it", programs: []string{"gcc"}},
		{thing: distro.LibcHeaders, name: "the C library's headers", why: "runc is built with them", files: []string{"usr/include/stdio.h"}},
		{thing: distro.PkgConfig, name: "pkg-config", why: "it tells runc's build where libseccomp is", programs: []string{"pkg-config"}},
		{thing: distro.CACerts, name: "CA certificates", why: "the components' sources are downloaded over HTTPS", files: []string{
			"etc/ssl/certs/ca-certificates.crt", "etc/pki/tls/certs/ca-bundle.crt", "etc/ssl/ca-bundle.pem", "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "etc/ssl/cert.pem",
		}},
	}
}

// testNeeds lists what the tests and `make check` run, apart from what machines and builds need.
func testNeeds() []need {
	return []need{
		{thing: distro.Git, name: "git", why: "generated code is compared with the committed code", programs: []string{"git"}},
		{thing: distro.Make, name: "make", why: "the tests are started with it", programs: []string{"make"}},
		{thing: distro.Protoc, name: "protoc", why: "the gRPC code is generated with it", programs: []string{"protoc"}},
		{thing: distro.IP, name: "ip", why: "tests create network namespaces and compare the host's network before and after", programs: []string{"ip"}},
		{thing: distro.PS, name: "ps", why: "tests list and kill the processes of machines", programs: []string{"ps", "pkill"}},
		{thing: distro.Curl, name: "curl", why: "tests run the scripts of user data, which download with it", programs: []string{"curl"}},
		{thing: distro.Useradd, name: "useradd", why: "tests create users and groups", programs: []string{"useradd", "groupadd", "usermod"}},
		{thing: distro.SSHD, name: "sshd", why: "tests log in to machines over SSH", programs: []string{"sshd"}},
		{thing: distro.SSHClient, name: "ssh-keygen", why: "tests create SSH keys", programs: []string{"ssh-keygen"}},
		{thing: distro.Sudo, name: "sudo", why: "tests log in as a user with sudo", programs: []string{"sudo"}},
		{thing: distro.CloudInit, name: "cloud-init", why: "tests boot machines with user data", programs: []string{"cloud-init"}},
	}
}

// TestPrograms lists the programs that exist wherever Run with Options.Tests has found no problem.
func TestPrograms() []string {
	names := []string{"go"}
	for _, n := range slices.Concat(machineNeeds(), buildNeeds(), testNeeds(), []need{systemdNeed()}) {
		names = append(names, n.programs...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// check returns the finding for a need.
func (n need) check(h host) Finding {
	for _, p := range n.programs {
		if !h.hasProgram(p) {
			return n.missing(h)
		}
	}
	if len(n.files) > 0 && !slices.ContainsFunc(n.files, h.matches) {
		return n.missing(h)
	}
	return Finding{ID: string(n.thing), Severity: OK, What: n.name}
}

func (n need) missing(h host) Finding {
	m := facts.PackageManager(h.root)
	f := Finding{ID: string(n.thing), Severity: Problem, What: n.name + " is missing", Detail: n.why, Package: m.Packages[n.thing]}
	switch {
	case f.Package != "":
		f.Remedy = m.CommandLine(strings.Fields(f.Package)...)
	case n.thing == distro.Systemd && m.Name != "":
		f.Remedy = "do not use --init systemd: this distribution has no systemd"
	default:
		f.Remedy = "install " + n.name + " with your distribution's package manager"
	}
	return f
}

func checkPrograms(_ context.Context, h host, o Options) []Finding {
	var out []Finding
	if o.Systemd {
		out = append(out, systemdNeed().check(h))
	}
	for _, n := range machineNeeds() {
		out = append(out, n.check(h))
	}
	return out
}

// checkBuild checks for what building the components takes: Go for all of them, a C compiler and libseccomp
// for runc.
func checkBuild(ctx context.Context, h host, o Options) []Finding {
	if !o.NeedBuild {
		return nil
	}
	golang := Finding{ID: "go", Severity: OK, What: "go"}
	if _, err := exec.LookPath("go"); err != nil && !h.hasProgram("go") {
		golang = Finding{
			ID: "go", Severity: Problem, What: "go is missing", Detail: "the components are built from source",
			Remedy: "install Go as described at https://go.dev/doc/install", // distributions' versions are too old
		}
	}
	out := []Finding{golang}
	for _, n := range buildNeeds() {
		out = append(out, n.check(h))
	}
	seccomp := need{thing: distro.Libseccomp, name: "the static libseccomp", why: "runc filters system calls with it"}
	if h.hasStaticSeccomp(ctx) {
		return append(out, seccomp.check(h))
	}
	return append(out, seccomp.missing(h))
}

// hasStaticSeccomp looks for both libseccomp.pc and libseccomp.a.
func (h host) hasStaticSeccomp(ctx context.Context) bool {
	if h.root == "/" { // pkg-config also searches $PKG_CONFIG_PATH
		out, err := exec.CommandContext(ctx, "pkg-config", "--variable=libdir", "libseccomp").Output()
		if err == nil {
			_, err = os.Stat(filepath.Join(strings.TrimSpace(string(out)), "libseccomp.a"))
			return err == nil
		}
	}
	inLibraries := func(name string) bool {
		return slices.ContainsFunc([]string{"usr/lib/", "usr/lib64/", "usr/local/lib/", "usr/lib/*-linux-gnu*/"}, func(dir string) bool { return h.matches(dir + name) })
	}
	return inLibraries("pkgconfig/libseccomp.pc") && inLibraries("libseccomp.a")
}

func checkTests(_ context.Context, h host, o Options) []Finding {
	if !o.Tests {
		return nil
	}
	var out []Finding
	for _, n := range testNeeds() {
		out = append(out, n.check(h))
	}
	return out
}
