// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/machine"
)

// Exec runs a program inside a machine, the first one if none is named, and returns its exit code.
func (l *Launcher) Exec(ctx context.Context, cluster, name string, c machine.Command) (exitCode int, err error) {
	local, m, err := l.localNamed(ctx, cluster, name)
	var far *NotHereError
	if errors.As(err, &far) {
		return -1, fmt.Errorf("machine %s is not of this host: run it there yourself: %s", far.Machine, far.SSH.CommandLine(c.TTY, c.Args...))
	}
	if err != nil {
		return -1, err
	}
	if !m.Running {
		return -1, notRunning(cluster, m)
	}
	if err := findCommand(fmt.Sprintf("/proc/%d/root", m.PID), c); err != nil {
		return -1, fmt.Errorf("machine %s: %w", m.Name, err)
	}
	return local.Exec(ctx, cluster, m.Name, c)
}

// NoCommandError says that a machine has no such program, or one that cannot be run. The codes are those of a shell.
type NoCommandError struct {
	Command string
	Code    int // 127: not found; 126: not executable
}

func (e *NoCommandError) Error() string {
	if e.Code == notExecutable {
		return e.Command + ": is no program that can be run in the machine"
	}
	return e.Command + ": not found in the machine"
}

const (
	notExecutable = 126
	notFound      = 127
)

// findCommand looks for the program as runc will, so that the user hears of a wrong name from us: runc's own words are a line
// of its log. What cannot be looked up is left to runc. Links are followed inside of the root.
func findCommand(root string, c machine.Command) error {
	if len(c.Args) == 0 || len(c.Env) > 0 {
		return nil // a PATH of its own
	}
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil // runc tells
	}
	defer unix.Close(dir)
	name := c.Args[0]
	candidates := []string{path.Join("/", c.Dir, name)}
	if !strings.Contains(name, "/") {
		candidates = nil
		for _, folder := range strings.Split(machine.PathInside, ":") {
			candidates = append(candidates, path.Join(folder, name))
		}
	} else if path.IsAbs(name) {
		candidates = []string{name}
	}
	missing := &NoCommandError{name, notFound}
	for _, at := range candidates {
		switch found, runs := program(dir, at); {
		case runs:
			return nil
		case found && len(candidates) == 1:
			missing.Code = notExecutable
		}
	}
	return missing
}

// program tells whether there is a file that may be executed. In doubt there is one.
func program(root int, name string) (found, runs bool) {
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
