// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/durable"
)

// modulesDone counts built-in modules as loaded. A kernel without module support is complete.
func modulesDone(_ context.Context, h Host, args []string) error {
	if missing := h.missingModules(args); len(missing) > 0 {
		return fmt.Errorf("kernel modules are not loaded: %s", strings.Join(missing, ", "))
	}
	return nil
}

func loadModules(ctx context.Context, h Host, args []string) error {
	for _, name := range h.missingModules(args) {
		if _, err := h.run(ctx, nil, byPath("modprobe", "--", name)...); err != nil {
			return fmt.Errorf("load kernel module %s: %w (if this kernel does not have it, see /lib/modules, remove it from spec.os.modules)", name, err)
		}
		h.log("loaded kernel module %s", name)
	}
	return nil
}

func (h Host) missingModules(args []string) []string {
	loaded, modular := h.read("/proc/modules")
	if h.Shared || !modular {
		return nil
	}
	isLoaded := map[string]bool{}
	for line := range strings.Lines(loaded) { // "overlay 151552 12 - Live 0x0"
		name, _, _ := strings.Cut(line, " ")
		isLoaded[name] = true
	}
	builtin, available := h.moduleList("modules.builtin"), h.moduleList("modules.dep")
	var missing []string
	for _, arg := range args {
		name, may := optional(arg)
		plain := underscored(name)
		switch {
		case isLoaded[plain], h.exists("/sys/module/" + plain), slices.Contains(builtin, plain):
		case may && (!slices.Contains(available, plain) || !h.mayLoadModules()):
		default:
			missing = append(missing, name)
		}
	}
	return missing
}

// moduleList reads the names in a file of /lib/modules, whose lines look like
// "kernel/fs/overlayfs/overlay.ko.zst: …".
func (h Host) moduleList(file string) []string {
	release, _ := h.read("/proc/sys/kernel/osrelease")
	text, _ := h.read("/lib/modules/" + strings.TrimSpace(release) + "/" + file)
	var names []string
	for line := range strings.Lines(text) {
		path, _, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name, _, ok := strings.Cut(filepath.Base(path), ".ko"); ok {
			names = append(names, underscored(name))
		}
	}
	return names
}

// mayLoadModules reports whether this process has CAP_SYS_MODULE and the kernel still accepts modules.
func (h Host) mayLoadModules() bool {
	const capSysModule = 16
	if disabled, _ := h.read("/proc/sys/kernel/modules_disabled"); strings.TrimSpace(disabled) == "1" {
		return false
	}
	status, _ := h.read("/proc/self/status")
	for line := range strings.Lines(status) {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			bits, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			return err == nil && bits&(1<<capSysModule) != 0
		}
	}
	return false
}

func underscored(module string) string { return strings.ReplaceAll(module, "-", "_") }

// sysctlsDone compares the kernel's values with the arguments, NAME=VALUE each.
func sysctlsDone(_ context.Context, h Host, args []string) error {
	var reasons []string
	for _, s := range h.differingSysctls(args) {
		reasons = append(reasons, s.reason())
	}
	return summary(reasons)
}

// setSysctls sets as many as it can: one wrong name does not prevent the others.
func setSysctls(_ context.Context, h Host, args []string) error {
	var reasons []string
	for _, s := range h.differingSysctls(args) {
		if !s.exists {
			reasons = append(reasons, s.reason())
			continue
		}
		if err := os.WriteFile(s.path, []byte(s.want), 0o644); err != nil {
			reasons = append(reasons, fmt.Sprintf("write %s to %s: %v", s.want, s.path, err))
			continue
		}
		before := s.have
		if s.read(); s.have != s.want {
			reasons = append(reasons, fmt.Sprintf("%s: wrote %q, the kernel reports %q", s.name, s.want, s.have))
			continue
		}
		h.log("%s = %s (was %s)", s.name, s.want, before)
	}
	return summary(reasons)
}

// sysctl is a kernel setting with its wanted and its current value.
type sysctl struct {
	name, path, want, have string
	exists                 bool
}

func (s *sysctl) read() {
	data, err := os.ReadFile(s.path)
	s.have, s.exists = singleSpaced(string(data)), err == nil
}

func (s *sysctl) reason() string {
	if !s.exists {
		return s.name + ": this kernel does not have this setting, or only once a module is loaded (see spec.os.modules)"
	}
	return fmt.Sprintf("%s is %s, want %s", s.name, s.have, s.want)
}

// differingSysctls lists the settings that differ and that this machine may change.
func (h Host) differingSysctls(args []string) []sysctl {
	dotsToSlashes := strings.NewReplacer(".", "/", "/", ".") // "net.ipv4.conf.eth0/7.proxy_arp": a slash in a word is a dot, as for sysctl(8)
	var out []sysctl
	for _, arg := range args {
		setting, may := optional(arg)
		name, value, _ := strings.Cut(setting, "=")
		if h.Shared && !namespaced(name) {
			continue
		}
		s := sysctl{name: name, path: h.path("/proc/sys/" + dotsToSlashes.Replace(name)), want: singleSpaced(value)}
		s.read()
		if s.exists && s.have == s.want || may && (!s.exists || unix.Access(s.path, unix.W_OK) != nil) {
			continue
		}
		out = append(out, s)
	}
	return out
}

// namespaced reports whether a setting belongs to the machine's own network or IPC namespace even if the
// kernel is shared.
func namespaced(name string) bool {
	for _, prefix := range []string{"net.", "kernel.shm", "kernel.msg", "fs.mqueue."} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return name == "kernel.sem"
}

// singleSpaced replaces the tabs with which the kernel separates the words of a value.
func singleSpaced(s string) string { return strings.Join(strings.Fields(s), " ") }

func swapIsOff(_ context.Context, h Host, _ []string) error {
	if on := h.swapDevices(); len(on) > 0 && !h.Shared {
		return fmt.Errorf("swap is on: %s", strings.Join(on, ", "))
	}
	return nil
}

// switchSwapOff lasts until the next boot, when the task runs again.
func switchSwapOff(ctx context.Context, h Host, _ []string) error {
	if h.Shared {
		return nil
	}
	for _, device := range h.swapDevices() {
		if _, err := h.run(ctx, nil, byPath("swapoff", device)...); err != nil {
			return fmt.Errorf("switch swap off: %w (there may be too little memory for its contents)", err)
		}
		h.log("switched swap on %s off", device)
	}
	return nil
}

func swapIsOn(_ context.Context, h Host, _ []string) error {
	if len(h.swapDevices()) == 0 {
		return errors.New("there is no swap (add some, or change spec.os.swap)")
	}
	return nil
}

// swapDevices reads /proc/swaps, whose first line is a heading.
func (h Host) swapDevices() []string {
	text, _ := h.read("/proc/swaps")
	var devices []string
	for i, line := range strings.Split(strings.TrimSpace(text), "\n") {
		if f := strings.Fields(line); i > 0 && len(f) > 0 {
			devices = append(devices, strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(f[0]))
		}
	}
	return devices
}

const hostnameFile = "/etc/hostname"

func hostnameDone(_ context.Context, h Host, args []string) error {
	name := strings.Join(args, " ")
	if now, _ := h.read("/proc/sys/kernel/hostname"); strings.TrimSpace(now) != name {
		return fmt.Errorf("the host name is %s, want %s", strings.TrimSpace(now), name)
	}
	if next, _ := h.read(hostnameFile); strings.TrimSpace(next) != name {
		return fmt.Errorf("%s contains %q, want %s", hostnameFile, strings.TrimSpace(next), name)
	}
	return nil
}

func setHostname(_ context.Context, h Host, args []string) error {
	if len(args) != 1 {
		return errors.New("set host name: want one name")
	}
	set := h.SetHostname
	if set == nil {
		set = func(name string) error { return unix.Sethostname([]byte(name)) }
	}
	if err := set(args[0]); err != nil {
		return fmt.Errorf("set host name to %s: %w", args[0], err)
	}
	text := []byte(args[0] + "\n")
	err := durable.WriteFile(h.path(hostnameFile), 0o644, text)
	if errors.Is(err, syscall.EBUSY) { // a mount point, as in some containers
		err = os.WriteFile(h.path(hostnameFile), text, 0o644)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", hostnameFile, err)
	}
	h.log("set host name to %s", args[0])
	return nil
}

// clockIsSynced reads the kernel's flag, which every time daemon sets.
func clockIsSynced(_ context.Context, h Host, _ []string) error {
	synced := h.ClockSynced
	if synced == nil {
		synced = kernelClockSynced
	}
	ok, err := synced()
	if err != nil {
		return fmt.Errorf("read the state of the kernel's clock: %w", err)
	}
	if !ok {
		return errors.New("the clock is not synchronised (start chrony or systemd-timesyncd, see timedatectl; or change spec.os.timeSync)")
	}
	return nil
}

func kernelClockSynced() (bool, error) {
	const clockError = 5 // TIME_ERROR of adjtimex(2)
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	return err == nil && state != clockError && t.Status&unix.STA_UNSYNC == 0, err
}
