// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// modulesDone: loaded and built in are one. A kernel that knows no modules has everything that it will ever have.
func modulesDone(_ context.Context, h Host, words []string) error {
	missing := h.missingModules(words)
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("kernel modules are not loaded: %s", strings.Join(missing, ", "))
}

func loadModules(ctx context.Context, h Host, words []string) error {
	for _, name := range h.missingModules(words) {
		if _, err := h.run(ctx, "/usr/bin/env", "modprobe", "--", name); err != nil {
			return fmt.Errorf("load kernel module %s: %w; this kernel may not have it: %s", name, err, "see /lib/modules, or leave it out of spec.os.modules")
		}
		h.say("kernel module %s loaded", name)
	}
	return nil
}

func (h Host) missingModules(words []string) []string {
	loaded, modular := h.read("/proc/modules")
	if h.Shared || !modular {
		return nil
	}
	var missing []string
	builtin, available := h.moduleList("modules.builtin"), h.moduleList("modules.dep")
	for _, word := range words {
		name, may := lenient(word)
		plain := underscored(name)
		switch {
		case hasModule(loaded, plain), h.exists("/sys/module/" + plain), slices.Contains(builtin, plain):
		case may && (!slices.Contains(available, plain) || !h.loadsModules()):
		default:
			missing = append(missing, name)
		}
	}
	return missing
}

// hasModule looks into /proc/modules: "overlay 151552 12 - Live 0x0".
func hasModule(loaded, name string) bool {
	for line := range strings.Lines(loaded) {
		if word, _, _ := strings.Cut(line, " "); word == name {
			return true
		}
	}
	return false
}

// moduleList reads the names of a file of /lib/modules: "kernel/fs/overlayfs/overlay.ko.zst: …".
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

// loadsModules: this process may, and the kernel has not been closed.
func (h Host) loadsModules() bool {
	const capSysModule = 16
	if closed, _ := h.read("/proc/sys/kernel/modules_disabled"); strings.TrimSpace(closed) == "1" {
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
