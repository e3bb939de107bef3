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
	systemdData = "etc-systemd" // the machine's own /etc/systemd: what is enabled on the host is none of its business
	agentUnit   = systemd.AgentUnit
	noGenerator = systemdEtc + "/no-generators" // does not exist: the host's fstab, consoles and init.d scripts are the host's
)

// findSystemd is the path of systemd's program below root; distributions have it in one of two places.
func findSystemd(root string) (string, error) {
	for _, path := range []string{"/usr/lib/systemd/systemd", "/lib/systemd/systemd"} {
		if info, err := os.Stat(filepath.Join(root, path)); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", errors.New("find systemd: neither /usr/lib/systemd/systemd nor /lib/systemd/systemd is here: install the package systemd, or leave --init away")
}

// writeUnits makes the machine's own /etc/systemd: the agent is enabled, and what the distribution starts on every boot is
// not, but for the journal. Units that somebody has added stay.
func (l *Local) writeUnits(s Spec) error {
	f := l.folders(s.Cluster, s.Name)
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
	for _, unit := range hostsOwn() {
		links["system/"+unit] = os.DevNull
	}
	for _, want := range distributionWants("/") {
		links["system/"+want] = os.DevNull
	}
	for name, text := range files {
		if err := putUnit(filepath.Join(etc, name), func(tmp string) error { return os.WriteFile(tmp, []byte(text), 0o644) }); err != nil {
			return err
		}
	}
	for name, target := range links {
		if err := putUnit(filepath.Join(etc, name), func(tmp string) error { return os.Symlink(target, tmp) }); err != nil {
			return err
		}
	}
	return nil
}

// putUnit replaces a file of a machine that is down. A power cut loses at most what the next boot writes again.
func putUnit(path string, put func(tmp string) error) error {
	tmp := path + ".slipway"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("write machine's unit: %w", err)
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), put(tmp), os.Rename(tmp, path)); err != nil {
		return fmt.Errorf("write machine's unit: %w", err)
	}
	return nil
}

// The watchdog is the host's. A machine that hangs is killed by the host after stopLimit.
const systemConf = `# Written by slipway.
[Manager]
ShowStatus=no
RuntimeWatchdogSec=0
RebootWatchdogSec=0
KExecWatchdogSec=0
DefaultTimeoutStopSec=30s
`

// The kernel's log and audit are the host's.
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

// agentDropIn is what the agent of a local machine has as a child of [Init], and would lack as systemd's.
func (s Spec) agentDropIn() string {
	var b strings.Builder
	b.WriteString("# Written by slipway.\n[Service]\nExecStart=\nExecStart=" + BinDir + "/slipway")
	for _, a := range s.Agent {
		b.WriteString(" " + unitWord(a))
	}
	b.WriteString("\nStandardOutput=append:/var/log/slipway/agent.log\nStandardError=inherit\n")
	for _, e := range append(insideEnv(), s.Env...) {
		b.WriteString("Environment=" + unitWord(e) + "\n")
	}
	return b.String()
}

// unitWord quotes one word of a unit file.
func unitWord(word string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `%`, `%%`, "\n", `\n`).Replace(word) + `"`
}

// hostsOwn are units that act on the kernel, its devices or its clock, which a machine shares with its host. Nothing inside may
// start them, whoever asks.
func hostsOwn() []string {
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

// distributionWants are the links, as TARGET.wants/UNIT, by which packages have units started on every boot, but for those that a
// machine needs as well. A link of the same name to /dev/null takes it back.
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
