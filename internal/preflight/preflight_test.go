// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/node/facts"
	"github.com/slipway-project/slipway/internal/node/prepare"
)

const (
	v1Mounts = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
	v2Mounts = "31 23 0:28 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
	// systemd's named hierarchy has no controllers; a v2 hierarchy counts only at /sys/fs/cgroup.
	namedOnly = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n"
	allCaps   = "CapEff:\t000001ffffffffff\n"
	debian    = "PRETTY_NAME=\"Debian GNU/Linux 12\"\nID=debian\n"
)

func TestCgroupVersion(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		mounts string
		want   int
	}{
		"hybrid":                 {v1Mounts, 1},
		"v2":                     {v2Mounts, 2},
		"only a named hierarchy": {namedOnly, 0},
		"none":                   {"", 0},
	} {
		if got := fake(t, map[string]string{"proc/self/mountinfo": tt.mounts}).cgroupVersion(); got != tt.want {
			t.Errorf("%s: got cgroup version %d, want %d", name, got, tt.want)
		}
	}
}

// TestFaults gives each host one fault. Exactly that fault must be found, with its remedy.
func TestFaults(t *testing.T) {
	t.Parallel()
	sound := map[string]string{
		"proc/self/mountinfo": v2Mounts, "proc/self/status": allCaps, "sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n",
		"proc/sys/kernel/osrelease": "6.1.0-1-amd64\n", "proc/filesystems": "nodev\toverlay\n", "etc/os-release": debian,
		"proc/meminfo": "MemAvailable: 8000000 kB\nSwapTotal: 0 kB\n", "usr/sbin/nft": "x", "usr/bin/mount": "x", "usr/lib/systemd/systemd": "x", "usr/bin/systemctl": "x", "usr/bin/journalctl": "x", "usr/bin/systemd-analyze": "x", "etc/ssl/certs/ca-certificates.crt": "x", "usr/bin/gcc": "x", "usr/bin/go": "x",
		"usr/bin/pkg-config": "x", "usr/include/stdio.h": "", "usr/lib/x86_64-linux-gnu/libseccomp.a": "", "usr/lib/x86_64-linux-gnu/pkgconfig/libseccomp.pc": "",
		"proc/sys/fs/inotify/max_user_instances": "128", "proc/sys/fs/inotify/max_user_watches": "65536",
		"proc/sys/kernel/hostname": "box\n", "proc/sys/net/bridge/bridge-nf-call-iptables": "1\n",
	}
	for _, n := range testNeeds() {
		for _, p := range n.programs {
			sound["usr/bin/"+p] = "x"
		}
	}
	for _, ns := range []string{"pid", "net", "ipc", "uts", "mnt", "cgroup"} {
		sound["proc/self/ns/"+ns] = ""
	}
	for name, tt := range map[string]struct {
		change map[string]string // "-" removes
		want   []string          // "severity id remedy"
	}{
		"sound":            {nil, nil},
		"no nft":           {map[string]string{"usr/sbin/nft": "-"}, []string{"problem nft apt-get update && apt-get install -y --no-install-recommends nftables"}},
		"no nft on Fedora": {map[string]string{"usr/sbin/nft": "-", "etc/os-release": "ID=fedora\n"}, []string{"problem nft dnf install -y nftables"}},
		"no nft, unknown":  {map[string]string{"usr/sbin/nft": "-", "etc/os-release": "ID=mine\n"}, []string{"problem nft install nft with your distribution's package manager"}},
		"br_netfilter is not loaded": {
			map[string]string{"proc/sys/net/bridge/bridge-nf-call-iptables": "-", "proc/modules": "overlay 1 0 - Live 0x0\n", "lib/modules/6.1.0-1-amd64/modules.dep": "kernel/net/bridge/br_netfilter.ko: \n"},
			[]string{"warning br_netfilter modprobe br_netfilter"},
		},
		"no br_netfilter": {
			map[string]string{"proc/sys/net/bridge/bridge-nf-call-iptables": "-", "proc/modules": ""},
			[]string{"warning br_netfilter use a distribution's standard kernel"},
		},
		"no host name": {map[string]string{"proc/sys/kernel/hostname": "localhost.localdomain\n"}, []string{"warning hostname hostnamectl set-hostname NAME, or spec.os.hostname: node"}},
		"no systemd":   {map[string]string{"usr/lib/systemd/systemd": "-"}, []string{"problem systemd apt-get update && apt-get install -y --no-install-recommends systemd"}},
		"no systemctl": {map[string]string{"usr/bin/systemctl": "-", "etc/os-release": "ID=fedora\n"}, []string{"problem systemd dnf install -y systemd"}},
		"never systemd": {
			map[string]string{"usr/lib/systemd/systemd": "-", "etc/os-release": "ID=alpine\n"},
			[]string{"problem systemd do not use --init systemd: this distribution has no systemd"},
		},
		"no build tools": {
			map[string]string{"usr/bin/gcc": "-", "usr/include/stdio.h": "-", "usr/bin/pkg-config": "-", "usr/lib/x86_64-linux-gnu/libseccomp.a": "-"},
			[]string{
				"problem gcc apt-get update && apt-get install -y --no-install-recommends gcc", "problem libc headers apt-get update && apt-get install -y --no-install-recommends libc6-dev",
				"problem pkg-config apt-get update && apt-get install -y --no-install-recommends pkg-config", "problem libseccomp apt-get update && apt-get install -y --no-install-recommends libseccomp-dev",
			},
		},
		"no test programs": {
			map[string]string{"usr/bin/sshd": "-", "usr/bin/cloud-init": "-", "usr/bin/protoc": "-"},
			[]string{
				"problem protoc apt-get update && apt-get install -y --no-install-recommends protobuf-compiler",
				"problem sshd apt-get update && apt-get install -y --no-install-recommends openssh-server",
				"problem cloud-init apt-get update && apt-get install -y --no-install-recommends cloud-init",
			},
		},
		"limited root": {map[string]string{"proc/self/status": "CapEff:\t00000000a80425fb\n"}, []string{
			"problem capabilities run slipway on the host itself, or start the container with --privileged --cgroupns=host", "warning oom-score ",
		}},
		"hybrid, memory off": {
			map[string]string{"proc/self/mountinfo": v1Mounts, "proc/cgroups": "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpuset\t1\t1\t1\ncpu\t2\t1\t1\nmemory\t0\t1\t0\npids\t4\t1\t1\n"},
			[]string{"warning cgroup boot with systemd.unified_cgroup_hierarchy=1 if the distribution supports it", "problem controllers boot with cgroup_enable=memory"},
		},
		"old kernel":    {map[string]string{"proc/sys/kernel/osrelease": "5.4.0\n"}, []string{"problem kernel upgrade the kernel"}},
		"old, by minor": {map[string]string{"proc/sys/kernel/osrelease": "5.12.19\n"}, []string{"problem kernel upgrade the kernel"}},
		"no namespaces": {map[string]string{"proc/self/ns/net": "-"}, []string{"problem namespaces use a distribution's standard kernel"}},
		"little memory": {map[string]string{"proc/meminfo": "MemAvailable: 1000000 kB\n"}, []string{"warning memory "}},
		"no memory":     {map[string]string{"proc/meminfo": "MemAvailable: 100000 kB\n"}, []string{"problem memory stop some programs: ps aux --sort=-rss | head"}},
		"few instances": {
			map[string]string{"proc/sys/fs/inotify/max_user_instances": "64"}, []string{"problem inotify-instances sysctl -w fs.inotify.max_user_instances=1024"},
		},
		"few watches": {map[string]string{"proc/sys/fs/inotify/max_user_watches": "8192"}, []string{"warning inotify-watches sysctl -w fs.inotify.max_user_watches=524288"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files := map[string]string{}
			for _, m := range []map[string]string{sound, tt.change} {
				for path, content := range m {
					files[path] = content
				}
			}
			h := fake(t, files)
			var got []string
			for _, check := range []check{checkRights, checkKernel, checkCgroups, checkPrograms, checkBuild, checkTests, checkMemory, checkLimits, checkHostname, checkModules} {
				for _, f := range check(t.Context(), h, Options{NeedBuild: true, Systemd: true, Tests: true}) {
					if f.Severity != OK && (f.ID != "root" || os.Geteuid() == 0) && f.ID != "go" {
						got = append(got, string(f.Severity)+" "+f.ID+" "+f.Remedy)
					}
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestJudgements(t *testing.T) {
	t.Parallel()
	built := time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		got  Finding
		want Severity
	}{
		"ext4":              {judgeFilesystem("/r", unix.EXT4_SUPER_MAGIC), OK},
		"overlayfs":         {judgeFilesystem("/r", unix.OVERLAYFS_SUPER_MAGIC), Problem},
		"tmpfs":             {judgeFilesystem("/r", unix.TMPFS_MAGIC), Problem},
		"4 GiB":             {judgeSpace("/r", 4*gib), Problem},
		"9 GiB":             {judgeSpace("/r", 9*gib), Warning},
		"90 GiB":            {judgeSpace("/r", 90*gib), OK},
		"1970":              {judgeClock(time.Unix(0, 0), built), Problem},
		"hours behind":      {judgeClock(built.Add(-3*time.Hour), built), OK},
		"later":             {judgeClock(built.Add(time.Hour), built), OK},
		"2025, unknown":     {judgeClock(time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC), time.Time{}), Problem},
		"no root directory": {checkRoot(t.Context(), host{}, Options{Root: "/nonexistent/a/b"})[0], severityOfRoot(t)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tt.got.Severity != tt.want || tt.want == Problem && tt.got.Remedy == "" {
				t.Errorf("got %+v, want severity %s with a remedy", tt.got, tt.want)
			}
		})
	}
}

// severityOfRoot is the severity for the filesystem of / of the host that runs the tests.
func severityOfRoot(t *testing.T) Severity {
	var st unix.Statfs_t
	if err := unix.Statfs("/", &st); err != nil {
		t.Fatal(err)
	}
	return judgeFilesystem("/", int64(st.Type)).Severity
}

func TestInstall(t *testing.T) {
	t.Parallel()
	const lists = "var/lib/apt/lists/deb_Packages"
	const update, repair = "apt-get update", "dpkg --configure"
	const get = "apt-get install gcc nftables"
	for name, tt := range map[string]struct {
		files   map[string]string
		fail    map[int]bool // the numbers of the calls that fail
		want    []string     // without options and queries
		wantErr string
	}{
		"lists exist": {map[string]string{"etc/os-release": debian, lists: ""}, nil, []string{repair, get}, ""},
		"fresh image": {map[string]string{"etc/os-release": debian}, nil, []string{repair, update, get}, ""},
		"stale lists": {map[string]string{"etc/os-release": debian, lists: ""}, map[int]bool{1: true}, []string{repair, get, update, get}, ""},
		"fails": {
			map[string]string{"etc/os-release": debian, lists: ""},
			map[int]bool{1: true, 3: true},
			[]string{repair, get, update, get},
			"install gcc, nftables: apt-get: exit 100: E: no such thing (try it by hand: apt-get update && apt-get install -y --no-install-recommends gcc nftables)",
		},
		"Fedora":  {map[string]string{"etc/os-release": "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n"}, nil, []string{"dnf install gcc nftables"}, ""},
		"unknown": {map[string]string{}, nil, nil, "install gcc, nftables: the package manager of this distribution is unknown (install them by hand)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := fake(t, tt.files).root
			var calls []string
			h := prepare.Host{Root: root, Manager: facts.PackageManager(root), Execute: func(_ context.Context, _, args []string) (string, error) {
				line := args[1:] // behind /usr/bin/env
				switch line[0] {
				case "dpkg-query":
					return "installed|bash|\n", nil
				case "rpm":
					return "not installed", errors.New("exit 1")
				}
				_, names, _ := strings.Cut(strings.Join(line, " "), " --")
				_, names, _ = strings.Cut(names, "-- ")
				if line[1] == "--configure" {
					names = ""
				} else if line[0] == "dnf" {
					names = "gcc nftables"
				}
				calls = append(calls, strings.TrimSpace(line[0]+" "+line[1]+" "+names))
				if tt.fail[len(calls)-1] {
					return "E: no such thing\n", errors.New("exit 100")
				}
				return "", nil
			}}
			err := install(t.Context(), h, []Finding{
				{Severity: Problem, Package: "nftables"}, {Severity: Problem, Package: "gcc nftables"}, {Severity: Warning, Package: "no"}, {Severity: Problem},
			}, func(string) {})
			if diff := cmp.Diff(tt.want, calls); diff != "" {
				t.Errorf("commands (-want +got):\n%s", diff)
			}
			if (err == nil) != (tt.wantErr == "") || err != nil && err.Error() != tt.wantErr {
				t.Errorf("got error %v, want %s", err, tt.wantErr)
			}
		})
	}
}

func TestMarkFixed(t *testing.T) {
	t.Parallel()
	before := []Finding{{ID: "nft", Severity: Problem}, {ID: "disk", Severity: OK}, {ID: "br_netfilter", Severity: Warning}, {ID: "memory", Severity: Problem}}
	after := []Finding{{ID: "nft", Severity: OK}, {ID: "disk", Severity: OK}, {ID: "br_netfilter", Severity: OK}, {ID: "memory", Severity: Warning}, {ID: "new", Severity: OK}}
	var got []string
	for _, f := range MarkFixed(before, after) {
		got = append(got, string(f.Severity)+" "+f.ID)
	}
	if diff := cmp.Diff([]string{"fixed nft", "ok disk", "fixed br_netfilter", "warning memory", "ok new"}, got); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
	if after[0].Severity != OK {
		t.Error("MarkFixed changed its argument")
	}
}

// TestInstallLoadsModules checks that a module that cannot be loaded does not make Install fail.
func TestInstallLoadsModules(t *testing.T) {
	t.Parallel()
	findings := []Finding{{ID: "br_netfilter", Severity: Warning, Module: "no_such_module"}, {ID: "other", Severity: OK, Module: "x"}}
	if diff := cmp.Diff([]string{"no_such_module"}, Fixable(findings)); diff != "" {
		t.Errorf("fixable (-want +got):\n%s", diff)
	}
	var got []string
	h := fake(t, map[string]string{"proc/modules": "", "proc/sys/kernel/osrelease": "0\n"}).prepared()
	if err := install(t.Context(), h, findings, func(line string) { got = append(got, line) }); err != nil {
		t.Errorf("got error %v, want none", err)
	}
	if len(got) != 2 || got[0] != "$ modprobe no_such_module" || !strings.Contains(got[1], "load kernel module no_such_module") {
		t.Errorf("got progress %q", got)
	}
}

func TestLines(t *testing.T) {
	t.Parallel()
	var got []string
	l := &lines{to: func(line string) { got = append(got, line) }}
	for _, part := range []string{"one\ntw", "o\n", "three"} {
		if n, err := l.Write([]byte(part)); n != len(part) || err != nil {
			t.Errorf("write %q: got %d, %v", part, n, err)
		}
	}
	l.flush()
	if diff := cmp.Diff([]string{"one", "two", "three"}, got); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

// TestRunHere checks the host that runs the tests: whatever it is like, Run is quick and its findings are
// complete.
func TestRunHere(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to create namespaces")
	}
	var findings []Finding
	shortest := time.Hour
	for try := 0; try < 5 && shortest > 300*time.Millisecond; try++ { // other processes make some tries slow
		start := time.Now()
		findings = Run(t.Context(), Options{Root: filepath.Join(t.TempDir(), "none", "yet"), NeedBuild: true, Tests: true})
		shortest = min(shortest, time.Since(start))
	}
	if shortest > 3*time.Second { // no load explains that: a check waits for something
		t.Errorf("took %v, want less than 3 s", shortest)
	}
	seen := map[string]bool{}
	for _, f := range findings {
		t.Logf("%-8s %-18s %s — %s [%s]", f.Severity, f.ID, f.What, f.Detail, f.Remedy)
		if seen[f.ID] || f.What == "" || (f.Severity == Problem && f.Remedy == "") {
			t.Errorf("incomplete or duplicate: %+v", f)
		}
		seen[f.ID] = true
	}
	for _, id := range []string{"root", "capabilities", "kernel", "overlayfs", "bridge", "nf_tables", "cgroup", "nft", "gcc", "sshd", "protoc", "disk", "filesystem", "memory", "clock"} {
		if !seen[id] {
			t.Errorf("no finding for %s", id)
		}
	}
}

// fake returns a host with the given files.
func fake(t *testing.T, files map[string]string) host {
	t.Helper()
	root := t.TempDir()
	for path, content := range files {
		if content == "-" {
			continue
		}
		full := filepath.Join(root, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(full), 0o755), os.WriteFile(full, []byte(content), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	return host{root}
}
