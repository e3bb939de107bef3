// SPDX-License-Identifier: Apache-2.0

package operate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/inventory"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/provider"
	"github.com/slipway-project/slipway/internal/provider/ssh"
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

// consoleLog is the name under which a machine's console, which has the output of its PID 1, is shown among the logs.
const consoleLog = "machine"

// LogFile finds the log file of a component on a local machine, the first one if none is named: a unit's name, "agent", or
// "machine" for its console. The error for an unknown component lists those with a log. The machine need not be running.
func LogFile(ctx context.Context, inv inventory.Inventory, cluster, machine, component string) (path string, err error) {
	logs, err := LogFiles(ctx, inv, cluster, machine)
	if err != nil {
		return "", err
	}
	if path, ok := logs[component]; ok {
		return path, nil
	}
	return "", fmt.Errorf("log of %q: cluster %s has logs of %s", component, cluster, strings.Join(slices.Sorted(maps.Keys(logs)), ", "))
}

// LogFiles lists the log files of a local machine, the first one if none is named, by component.
func LogFiles(ctx context.Context, inv inventory.Inventory, cluster, name string) (map[string]string, error) {
	local, m, err := inv.LocalMachine(ctx, cluster, name)
	if err != nil {
		return nil, err
	}
	logs := map[string]string{}
	dir := filepath.Join(local.DataDir(cluster, m.Name, "log"), "slipway")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list logs: %w", err)
	}
	for _, e := range entries {
		if component, ok := strings.CutSuffix(e.Name(), ".log"); ok && e.Type().IsRegular() {
			logs[component] = filepath.Join(dir, e.Name())
		}
	}
	maps.Copy(logs, podLogs(filepath.Join(local.DataDir(cluster, m.Name, "log"), "pods"), m.Name))
	logs[consoleLog] = local.Console(cluster, m.Name)
	return logs, nil
}

// podLogs finds the logs of a machine's components that run as static pods: of each the latest start of the newest pod, since a
// replaced pod leaves its directory behind.
func podLogs(dir, machine string) map[string]string {
	logs, newest := map[string]string{}, map[string]time.Time{}
	pods, err := filepath.Glob(filepath.Join(dir, "kube-system_*-"+machine+"_*"))
	if err != nil {
		return nil
	}
	for _, pod := range pods {
		name, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(pod), "kube-system_"), "-"+machine+"_")
		path, at := latestLog(filepath.Join(pod, name))
		if path != "" && at.After(newest[name]) {
			logs[name], newest[name] = path, at
		}
	}
	return logs
}

// latestLog is the log of a container's latest start. The logs are called 0.log, 1.log and so on.
func latestLog(dir string) (path string, at time.Time) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", time.Time{}
	}
	latest := -1
	for _, e := range entries {
		number, isLog := strings.CutSuffix(e.Name(), ".log")
		n, err := strconv.Atoi(number)
		info, gone := e.Info()
		if isLog && err == nil && gone == nil && n > latest {
			latest, path, at = n, filepath.Join(dir, e.Name()), info.ModTime()
		}
	}
	return path, at
}

// RemoteLog writes the log of a component of a machine that is reached over SSH, the first one if none is named, as
// [ssh.Machines.Log] does.
func RemoteLog(ctx context.Context, inv inventory.Inventory, cluster, name, component string, tail int, follow bool, w io.Writer) error {
	machines, m, err := inv.Machine(ctx, cluster, name)
	if err != nil {
		return err
	}
	remote, ok := machines.(*ssh.Machines)
	switch {
	case !ok:
		return fmt.Errorf("log of %q: machine %s is on this host", component, m.Name)
	case m.Unreachable != "":
		return provider.NotRunning(cluster, m)
	}
	return remote.Log(ctx, m.Name, component, tail, follow, w)
}
