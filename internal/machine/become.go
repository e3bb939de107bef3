// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"fmt"
	"log/slog"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// BecomeSystemd is [Init]'s counterpart in machines of the other kind: PID 1 does what only it can do to keep machine and host
// apart, and then becomes the systemd of the machine's root filesystem. It returns only with an error.
func BecomeSystemd(log *slog.Logger) error {
	exe, err := findSystemd("/")
	if err != nil {
		return err
	}
	if err := keepApart(); err != nil {
		return err
	}
	// systemd raises these for the whole kernel at its start.
	for _, name := range []string{"fs/file-max", "fs/nr_open"} {
		value, err := os.ReadFile("/proc/sys/" + name)
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		if err := hideSysctl(name, strings.TrimSpace(string(value))); err != nil {
			return err
		}
	}
	if err := os.MkdirAll("/run/lock", 0o1777); err != nil {
		return err
	}
	// While a thread becomes another program, its process looks like a dead one: the host waits for the end of the pipe.
	if err := sayReady(); err != nil {
		return err
	}
	log.Info("systemd takes over", "program", exe, "its log", "journalctl, inside")
	env := append(insideEnv(), "container=slipway", "SYSTEMD_GENERATOR_PATH="+noGenerator)
	return fmt.Errorf("become systemd: %w", unix.Exec(exe, []string{exe, "--system"}, env))
}
