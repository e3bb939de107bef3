// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/render/systemd"
)

const (
	systemdEtc  = "/etc/systemd"
	systemdData = "etc-systemd" // the machine's own /etc/systemd: it does not inherit what the host has enabled
	agentUnit   = systemd.AgentUnit
	noGenerator = systemdEtc + "/no-generators" // does not exist: no units from the host's fstab, consoles and init.d scripts
)

// findSystemd is the path of the systemd executable below root. Distributions use one of two locations.
func findSystemd(root string) (string, error) {
	for _, path := range []string{"/usr/lib/systemd/systemd", "/lib/systemd/systemd"} {
		if info, err := os.Stat(filepath.Join(root, path)); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", errors.New("find systemd: neither /usr/lib/systemd/systemd nor /lib/systemd/systemd exists: install the systemd package, or omit --init")
}

// writeUnits writes the machine's own /etc/systemd. It enables the agent and disables what the distribution
// starts on every boot, except the journal and D-Bus. It keeps units that users have added.
func (l *Local) writeUnits(s Spec) error {
	f := l.paths(s.Cluster, s.Name)
	etc := f.data(systemdData)
	files := map[string]string{
		"system.conf":         systemConf,
		"journald.conf":       journaldConf,
		"system/" + agentUnit: string(systemd.AgentService(BinDir + "/slipway")),
		"system/" + agentUnit + ".d/machine.conf": s.agentDropIn(),
	}
	links := map[string]string{
		"system/default.target":                       "/lib/systemd/system/multi-user.target",
		"system/multi-user.target.wants/" + agentUnit: systemdEtc + "/system/" + agentUnit,
	}
	if s.Bare {
		delete(files, "system/"+agentUnit)
		delete(files, "system/"+agentUnit+".d/machine.conf")
		delete(links, "system/multi-user.target.wants/"+agentUnit)
	}
	for _, unit := range hostOnlyUnits() {
		links["system/"+unit] = os.DevNull
	}
	for _, want := range distributionWants("/") {
		links["system/"+want] = os.DevNull
	}
	for name, text := range files {
		if err := replaceFile(filepath.Join(etc, name), func(tmp string) error { return os.WriteFile(tmp, []byte(text), 0o644) }); err != nil {
			return err
		}
	}
	for name, target := range links {
		if err := replaceFile(filepath.Join(etc, name), func(tmp string) error { return os.Symlink(target, tmp) }); err != nil {
			return err
		}
	}
	return nil
}

// replaceFile replaces a file of a stopped machine. It does not sync: the next boot writes the file again.
func replaceFile(path string, create func(tmp string) error) error {
	tmp := path + ".slipway"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("write systemd configuration: %w", err)
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), create(tmp), os.Rename(tmp, path)); err != nil {
		return fmt.Errorf("write systemd configuration: %w", err)
	}
	return nil
}

// systemConf leaves the watchdog to the host. A machine that hangs is killed by the host after stopLimit.
const systemConf = `# Written by slipway.
[Manager]
ShowStatus=no
RuntimeWatchdogSec=0
RebootWatchdogSec=0
KExecWatchdogSec=0
DefaultTimeoutStopSec=30s
`

// journaldConf leaves the kernel's log and audit to the host.
const journaldConf = `# Written by slipway.
[Journal]
Storage=volatile
RuntimeMaxUse=32M
ReadKMsg=no
Audit=no
ForwardToSyslog=no
ForwardToKMsg=no
ForwardToConsole=no
ForwardToWall=no
`

// agentDropIn gives the agent under systemd the arguments, log and environment that it has under [Init].
func (s Spec) agentDropIn() string {
	var b strings.Builder
	b.WriteString("# Written by slipway.\n[Service]\nExecStart=\nExecStart=" + BinDir + "/slipway")
	for _, a := range s.Agent {
		b.WriteString(" " + quoteWord(a))
	}
	b.WriteString("\nStandardOutput=append:/var/log/slipway/agent.log\nStandardError=inherit\n")
	for _, e := range append(insideEnv(), s.Env...) {
		b.WriteString("Environment=" + quoteWord(e) + "\n")
	}
	return b.String()
}

// quoteWord quotes one word for a unit file.
func quoteWord(word string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `%`, `%%`, "\n", `\n`).Replace(word) + `"`
}

// hostOnlyUnits are units that act on the kernel, its devices or its clock, which a machine shares with its
// host. They are masked.
func hostOnlyUnits() []string {
	return strings.Fields(`
		systemd-udevd.service systemd-udevd-control.socket systemd-udevd-kernel.socket systemd-udev-trigger.service
		systemd-udev-settle.service systemd-hwdb-update.service systemd-modules-load.service systemd-sysctl.service
		systemd-tmpfiles-setup-dev.service systemd-tmpfiles-setup-dev-early.service kmod-static-nodes.service
		systemd-binfmt.service proc-sys-fs-binfmt_misc.automount proc-sys-fs-binfmt_misc.mount systemd-remount-fs.service
		systemd-random-seed.service systemd-pstore.service systemd-timesyncd.service systemd-vconsole-setup.service
		systemd-rfkill.socket systemd-rfkill.service systemd-journald-audit.socket systemd-journald-dev-log.socket
		systemd-logind.service
		systemd-networkd.service systemd-networkd.socket systemd-networkd-wait-online.service systemd-resolved.service
		getty@.service serial-getty@.service console-getty.service container-getty@.service autovt@.service`)
}

// distributionWants lists the links, as TARGET.wants/UNIT, by which packages start units on every boot,
// except those that a machine needs. A link of the same name to /dev/null disables one.
func distributionWants(root string) []string {
	needed := []string{"systemd-journald.service", "systemd-journald.socket", "dbus.socket"}
	var out []string
	for _, dir := range []string{"/lib/systemd/system", "/usr/lib/systemd/system", "/usr/local/lib/systemd/system"} {
		found, _ := filepath.Glob(filepath.Join(root, dir, "*.target.*s", "*")) // TARGET.wants and TARGET.requires
		for _, path := range found {
			of, unit := filepath.Base(filepath.Dir(path)), filepath.Base(path)
			ours := strings.HasSuffix(of, ".wants") || strings.HasSuffix(of, ".requires")
			if ours && !slices.Contains(needed, unit) {
				out = append(out, of+"/"+unit)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
