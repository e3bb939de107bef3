// SPDX-License-Identifier: Apache-2.0

package operate

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/inventory"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/provider"
)

// The functions that change the power or network of a machine do not take the cluster's lock: they simulate failures, which do
// not wait for a running up either.

// StopMachine powers a local machine off without a shutdown. It reports whether the machine was running.
func StopMachine(ctx context.Context, inv inventory.Inventory, cluster, name string) (changed bool, err error) {
	local, m, err := inv.LocalMachine(ctx, cluster, name)
	if err != nil {
		return false, err
	}
	return m.Running, local.PowerCut(ctx, cluster, m.Name) // also cleans up after a machine that is not running
}

// StartMachine boots a local machine with its disk as it is. It reports whether the machine was down.
func StartMachine(ctx context.Context, inv inventory.Inventory, cluster, name string) (changed bool, err error) {
	local, m, err := inv.LocalMachine(ctx, cluster, name)
	if err != nil {
		return false, err
	}
	change, err := local.Start(ctx, cluster, m.Name)
	if err != nil {
		return false, err
	}
	if change.BinaryReplaced && !change.Started {
		return false, local.RestartAgent(ctx, cluster, m.Name)
	}
	return change.Started, nil
}

// CutMachine disconnects a local machine from the network, or with from only from that machine. It reports whether the machine
// was connected.
func CutMachine(ctx context.Context, inv inventory.Inventory, cluster, name, from string) (changed bool, err error) {
	local, m, err := inv.LocalMachine(ctx, cluster, name)
	if err != nil {
		return false, err
	}
	if from == "" {
		return !m.Cut, local.Cut(ctx, cluster, m.Name)
	}
	return !slices.Contains(m.CutFrom, from), local.CutBetween(ctx, cluster, m.Name, from)
}

// HealMachine reconnects a local machine. It reports whether anything was cut.
func HealMachine(ctx context.Context, inv inventory.Inventory, cluster, name string) (changed bool, err error) {
	local, m, err := inv.LocalMachine(ctx, cluster, name)
	if err != nil {
		return false, err
	}
	return m.Cut || len(m.CutFrom) > 0, local.Heal(ctx, cluster, m.Name)
}

// Exec runs a program in a local machine, the first one if none is named, and returns its exit code. For a remote machine the
// error has the command line that does the same over SSH.
func Exec(ctx context.Context, inv inventory.Inventory, cluster, name string, c machine.Command) (exitCode int, err error) {
	local, m, err := inv.LocalMachine(ctx, cluster, name)
	var remote *inventory.NotLocalError
	if errors.As(err, &remote) {
		return -1, fmt.Errorf("machine %s is not on this host: run the command over SSH yourself: %s", remote.Machine, remote.SSH.CommandLine(c.TTY, c.Args...))
	}
	if err != nil {
		return -1, err
	}
	if !m.Running {
		return -1, provider.NotRunning(cluster, m)
	}
	if err := findCommand(fmt.Sprintf("/proc/%d/root", m.PID), c); err != nil {
		return -1, fmt.Errorf("machine %s: %w", m.Name, err)
	}
	return local.Exec(ctx, cluster, m.Name, c)
}

// NoCommandError means that a machine has no such program, or one that cannot be executed. The codes are a shell's.
type NoCommandError struct {
	Command string
	Code    int // 127: not found; 126: not executable
}

func (e *NoCommandError) Error() string {
	if e.Code == exitNotExecutable {
		return e.Command + ": not an executable program in the machine"
	}
	return e.Command + ": not found in the machine"
}

const (
	exitNotExecutable = 126
	exitNotFound      = 127
)

// findCommand looks for the program as runc does, because runc's own message is a line of its log. What cannot be looked up is
// left to runc. Links are resolved inside root.
func findCommand(root string, c machine.Command) error {
	if len(c.Args) == 0 || len(c.Env) > 0 { // Env may set another PATH
		return nil
	}
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(dir)
	name := c.Args[0]
	candidates := []string{path.Join("/", c.Dir, name)}
	if !strings.Contains(name, "/") {
		candidates = nil
		for _, dir := range strings.Split(machine.PathInside, ":") {
			candidates = append(candidates, path.Join(dir, name))
		}
	} else if path.IsAbs(name) {
		candidates = []string{name}
	}
	missing := &NoCommandError{name, exitNotFound}
	for _, candidate := range candidates {
		switch found, executable := lookUpProgram(dir, candidate); {
		case executable:
			return nil
		case found && len(candidates) == 1:
			missing.Code = exitNotExecutable
		}
	}
	return missing
}

// lookUpProgram reports whether there is a file that may be executed. If that cannot be determined it says yes.
func lookUpProgram(root int, name string) (found, executable bool) {
	fd, err := unix.Openat2(root, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return false, false
	}
	if err != nil {
		return true, true
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return true, true
	}
	return true, st.Mode&unix.S_IFMT == unix.S_IFREG && st.Mode&0o111 != 0
}
