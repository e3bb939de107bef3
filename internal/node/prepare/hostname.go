// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/durable"
)

const hostnameFile = "/etc/hostname"

func hostnameDone(_ context.Context, h Host, args []string) error {
	name := strings.Join(args, " ")
	if now, _ := h.read("/proc/sys/kernel/hostname"); strings.TrimSpace(now) != name {
		return fmt.Errorf("the machine is called %s, want %s", strings.TrimSpace(now), name)
	}
	if next, _ := h.read(hostnameFile); strings.TrimSpace(next) != name {
		return fmt.Errorf("%s says %q, want %s", hostnameFile, strings.TrimSpace(next), name)
	}
	return nil
}

func setHostname(_ context.Context, h Host, args []string) error {
	if len(args) != 1 {
		return errors.New("set the hostname: want one name")
	}
	set := h.SetHostname
	if set == nil {
		set = func(name string) error { return unix.Sethostname([]byte(name)) }
	}
	if err := set(args[0]); err != nil {
		return fmt.Errorf("set the hostname to %s: %w", args[0], err)
	}
	text := []byte(args[0] + "\n")
	err := durable.WriteFile(h.path(hostnameFile), 0o644, text)
	if errors.Is(err, syscall.EBUSY) { // a mount point, as in some containers
		err = os.WriteFile(h.path(hostnameFile), text, 0o644)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", hostnameFile, err)
	}
	h.say("the machine is called %s", args[0])
	return nil
}

// clockIsSynced asks the kernel, which any time daemon tells.
func clockIsSynced(_ context.Context, h Host, _ []string) error {
	ask := h.ClockSynced
	if ask == nil {
		ask = kernelClockSynced
	}
	synced, err := ask()
	if err != nil {
		return fmt.Errorf("ask the kernel's clock: %w", err)
	}
	if !synced {
		return errors.New("the clock is not synchronised: start chrony or systemd-timesyncd (see timedatectl), or change spec.os.timeSync")
	}
	return nil
}

func kernelClockSynced() (bool, error) {
	const clockError = 5 // TIME_ERROR of adjtimex(2)
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	return err == nil && state != clockError && t.Status&unix.STA_UNSYNC == 0, err
}
