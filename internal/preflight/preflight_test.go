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
)

const (
	v1Mounts = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
	v2Mounts = "31 23 0:28 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
	// systemd's own hierarchy beside v2 controllers has no controller: this is a v2 host for us only when v2 is at the top.
	namedOnly = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n"
	allCaps   = "CapEff:\t000001ffffffffff\n"
	noSysRes  = "CapEff:\t000001fffeffffff\n"
	debian    = "PRETTY_NAME=\"Debian GNU/Linux 12\"\nID=debian\n"
)

func TestFacts(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		mounts, status string
		want           Facts
		version        int
	}{
		"hybrid, limited root": {v1Mounts, noSysRes, Facts{CgroupV1: true}, 1},
		"v2, full root":        {v2Mounts, allCaps, Facts{OOMScoreAdj: true}, 2},
		"only a named one":     {namedOnly, allCaps, Facts{OOMScoreAdj: true}, 0},
		"nothing":              {"", "", Facts{}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := fake(t, map[string]string{"proc/self/mountinfo": tt.mounts, "proc/self/status": tt.status})
			if diff := cmp.Diff(tt.want, h.facts()); diff != "" || h.cgroupVersion() != tt.version {
				t.Errorf("%s version %d, want %d", diff, h.cgroupVersion(), tt.version)
			}
		})
	}
}

// Each made-up host has one fault; exactly that fault must be found, with its remedy.
func TestFaults(t *testing.T) {
	t.Parallel()
	sound := map[string]string{
		"proc/self/mountinfo": v2Mounts, "proc/self/status": allCaps, "sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n",
		"proc/sys/kernel/osrelease": "6.1.0-1-amd64\n", "proc/filesystems": "nodev\toverlay\n", "etc/os-release": debian,
		"proc/meminfo": "MemAvailable: 8000000 kB\nSwapTotal: 0 kB\n", "usr/sbin/nft": "x", "usr/bin/mount": "x", "usr/lib/systemd/systemd": "x", "usr/bin/systemctl": "x", "usr/bin/gcc": "x", "usr/bin/go": "x",
		"usr/bin/pkg-config": "x", "usr/include/stdio.h": "", "usr/lib/x86_64-linux-gnu/libseccomp.a": "", "usr/lib/x86_64-linux-gnu/pkgconfig/libseccomp.pc": "",
		"proc/sys/fs/inotify/max_user_instances": "128", "proc/sys/fs/inotify/max_user_watches": "65536",
		"proc/sys/kernel/hostname": "box\n", "proc/sys/net/bridge/bridge-nf-call-iptables": "1\n",
	}
	for _, ns := range []string{"pid", "net", "ipc", "uts", "mnt", "cgroup"} {
		sound["proc/self/ns/"+ns] = ""
	}
	for name, tt := range map[string]struct {
		change map[string]string // "-" removes
		want   []string          // "severity id remedy"
	}{
		"sound":            {nil, nil},
		"no nft":           {map[string]string{"usr/sbin/nft": "-"}, []string{"problem nft apt-get install -y --no-install-recommends nftables"}},
		"no nft on Fedora": {map[string]string{"usr/sbin/nft": "-", "etc/os-release": "ID=fedora\n"}, []string{"problem nft dnf install -y nftables"}},
		"no nft, unknown":  {map[string]string{"usr/sbin/nft": "-", "etc/os-release": "ID=mine\n"}, []string{"problem nft install nft with your distribution's package manager"}},
		"br_netfilter is not loaded": {
			map[string]string{"proc/sys/net/bridge/bridge-nf-call-iptables": "-", "proc/modules": "overlay 1 0 - Live 0x0\n", "lib/modules/6.1.0-1-amd64/modules.dep": "kernel/net/bridge/br_netfilter.ko: \n"},
			[]string{"warning br_netfilter modprobe br_netfilter"},
		},
		"no br_netfilter": {
			map[string]string{"proc/sys/net/bridge/bridge-nf-call-iptables": "-", "proc/modules": ""},
			[]string{"warning br_netfilter use a distribution's ordinary kernel"},
		},
		"no host name": {map[string]string{"proc/sys/kernel/hostname": "localhost.localdomain\n"}, []string{"warning hostname hostnamectl set-hostname NAME, or spec.os.hostname: node"}},
		"no systemd":   {map[string]string{"usr/lib/systemd/systemd": "-"}, []string{"problem systemd apt-get install -y --no-install-recommends systemd"}},
		"no systemctl": {map[string]string{"usr/bin/systemctl": "-", "etc/os-release": "ID=fedora\n"}, []string{"problem systemd dnf install -y systemd"}},
		"never systemd": {
			map[string]string{"usr/lib/systemd/systemd": "-", "etc/os-release": "ID=alpine\n"},
			[]string{"problem systemd leave --init systemd away: this distribution has no systemd"},
		},
		"no build tools": {
			map[string]string{"usr/bin/gcc": "-", "usr/include/stdio.h": "-", "usr/bin/pkg-config": "-", "usr/lib/x86_64-linux-gnu/libseccomp.a": "-"},
			[]string{
				"problem gcc apt-get install -y --no-install-recommends gcc", "problem libc headers apt-get install -y --no-install-recommends libc6-dev",
				"problem pkg-config apt-get install -y --no-install-recommends pkg-config", "problem libseccomp apt-get install -y --no-install-recommends libseccomp-dev",
			},
		},
		"limited root": {map[string]string{"proc/self/status": "CapEff:\t00000000a80425fb\n"}, []string{
			"problem capabilities run slipway on the host itself, or start the container with --privileged --cgroupns=host", "warning oom-score ",
		}},
		"hybrid, memory off": {
			map[string]string{"proc/self/mountinfo": v1Mounts, "proc/cgroups": "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpuset\t1\t1\t1\ncpu\t2\t1\t1\nmemory\t0\t1\t0\npids\t4\t1\t1\n"},
			[]string{"warning cgroup boot with systemd.unified_cgroup_hierarchy=1 when the distribution offers it", "problem controllers boot with cgroup_enable=memory"},
		},
		"old kernel":    {map[string]string{"proc/sys/kernel/osrelease": "5.4.0\n"}, []string{"problem kernel upgrade the kernel"}},
		"old, by minor": {map[string]string{"proc/sys/kernel/osrelease": "5.12.19\n"}, []string{"problem kernel upgrade the kernel"}},
		"no namespaces": {map[string]string{"proc/self/ns/net": "-"}, []string{"problem namespaces use a distribution's ordinary kernel"}},
		"little memory": {map[string]string{"proc/meminfo": "MemAvailable: 1000000 kB\n"}, []string{"warning memory "}},
		"no memory":     {map[string]string{"proc/meminfo": "MemAvailable: 100000 kB\n"}, []string{"problem memory end some programs: ps aux --sort=-rss | head"}},
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
			for _, check := range []func(context.Context, host, Options) []Finding{checkRights, checkKernel, checkCgroups, checkPrograms, checkBuild, checkMemory, checkLimits, checkHostname, checkModules} {
				for _, f := range check(t.Context(), h, Options{NeedBuild: true, Systemd: true}) {
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
		"ext4":           {judgeFilesystem("/r", unix.EXT4_SUPER_MAGIC), OK},
		"overlayfs":      {judgeFilesystem("/r", unix.OVERLAYFS_SUPER_MAGIC), Problem},
		"tmpfs":          {judgeFilesystem("/r", unix.TMPFS_MAGIC), Problem},
		"4 GiB":          {judgeSpace("/r", 4*gib), Problem},
		"9 GiB":          {judgeSpace("/r", 9*gib), Warning},
		"90 GiB":         {judgeSpace("/r", 90*gib), OK},
		"1970":           {judgeClock(time.Unix(0, 0), built), Problem},
		"hours behind":   {judgeClock(built.Add(-3*time.Hour), built), OK},
		"later":          {judgeClock(built.Add(time.Hour), built), OK},
		"2025, unknown":  {judgeClock(time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC), time.Time{}), Problem},
		"no root folder": {checkRoot(t.Context(), host{}, Options{Root: "/nonexistent/a/b"})[0], judgeOwn(t)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tt.got.Severity != tt.want || tt.want == Problem && tt.got.Remedy == "" {
				t.Errorf("%+v, want %s", tt.got, tt.want)
			}
		})
	}
}

func judgeOwn(t *testing.T) Severity {
	var st unix.Statfs_t
	if err := unix.Statfs("/", &st); err != nil {
		t.Fatal(err)
	}
	return judgeFilesystem("/", int64(st.Type)).Severity
}

func TestInstall(t *testing.T) {
	t.Parallel()
	const lists = "var/lib/apt/lists/deb_Packages"
	const update, install = "apt-get update", "apt-get install -y --no-install-recommends gcc nftables"
	for name, tt := range map[string]struct {
		files   map[string]string
		fail    map[int]bool // which calls fail
		want    []string
		wantErr string
	}{
		"lists are there": {map[string]string{"etc/os-release": debian, lists: ""}, nil, []string{install}, ""},
		"fresh image":     {map[string]string{"etc/os-release": debian}, nil, []string{update, install}, ""},
		"stale lists":     {map[string]string{"etc/os-release": debian, lists: ""}, map[int]bool{0: true}, []string{install, update, install}, ""},
		"cannot": {
			map[string]string{"etc/os-release": debian, lists: ""},
			map[int]bool{0: true, 2: true},
			[]string{install, update, install},
			"install gcc, nftables: apt-get: exit 100: E: no such thing; try it by hand: apt-get update && " + install,
		},
		"Fedora":  {map[string]string{"etc/os-release": "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n"}, nil, []string{"dnf install -y gcc nftables"}, ""},
		"unknown": {map[string]string{}, nil, nil, "install gcc, nftables: this distribution's package manager is not known; install them by hand"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := fake(t, tt.files)
			var calls []string
			in := installer{h.packageManager(), h, func(string) {}, func(_ context.Context, args []string, line func(string)) error {
				calls = append(calls, strings.Join(args, " "))
				if tt.fail[len(calls)-1] {
					line("E: no such thing")
					return errors.New("exit 100")
				}
				return nil
			}}
			err := in.install(t.Context(), Packages([]Finding{
				{Severity: Problem, Package: "nftables"}, {Severity: Problem, Package: "gcc nftables"}, {Severity: Warning, Package: "no"}, {Severity: Problem},
			}))
			if diff := cmp.Diff(tt.want, calls); diff != "" {
				t.Error(diff)
			}
			if (err == nil) != (tt.wantErr == "") || err != nil && err.Error() != tt.wantErr {
				t.Errorf("error %v, want %s", err, tt.wantErr)
			}
		})
	}
}

func TestExecuteStreams(t *testing.T) {
	t.Parallel()
	var lines []string
	err := execute(t.Context(), []string{"sh", "-c", "echo one; echo two >&2; echo $DEBIAN_FRONTEND; exit 3"}, func(l string) { lines = append(lines, l) })
	if diff := cmp.Diff([]string{"one", "two", "noninteractive"}, lines); diff != "" || err == nil {
		t.Errorf("%s, error %v", diff, err)
	}
}

// The host that runs the tests: whatever it is like, Run is quick, its answers are complete, and it leaves no trace.
func TestRunHere(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for namespaces")
	}
	var findings []Finding
	best := time.Hour
	for try := 0; try < 5 && best > 300*time.Millisecond; try++ { // other work on the host makes some tries slow
		begin := time.Now()
		findings = Run(t.Context(), Options{Root: filepath.Join(t.TempDir(), "none", "yet"), NeedBuild: true})
		best = min(best, time.Since(begin))
	}
	if best > 3*time.Second { // a wait for something, which no load explains
		t.Errorf("took %v", best)
	}
	seen := map[string]bool{}
	for _, f := range findings {
		t.Logf("%-8s %-18s %s — %s [%s]", f.Severity, f.ID, f.What, f.Detail, f.Remedy)
		if seen[f.ID] || f.What == "" || (f.Severity == Problem && f.Remedy == "") {
			t.Errorf("incomplete or double: %+v", f)
		}
		seen[f.ID] = true
	}
	for _, id := range []string{"root", "capabilities", "kernel", "overlayfs", "bridge", "nf_tables", "cgroup", "nft", "gcc", "disk", "filesystem", "memory", "clock"} {
		if !seen[id] {
			t.Errorf("no answer about %s", id)
		}
	}
}

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
