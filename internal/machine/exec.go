// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"syscall"
	"time"
)

// Command is a program to run inside a machine.
type Command struct {
	Args []string
	Env  []string // optional: added to PATH, HOME, KUBECONFIG
	Dir  string   // optional: "/"

	Stdin          io.Reader // optional; a terminal must be given as *os.File
	Stdout, Stderr io.Writer // optional
	TTY            bool
}

// Exec runs a program inside and returns its exit code. The error is about running it, not about how it ended. When ctx is
// done the program gets SIGTERM and, two seconds later, SIGKILL.
func (l *Local) Exec(ctx context.Context, cluster, name string, c Command) (exitCode int, err error) {
	if len(c.Args) == 0 {
		return -1, errors.New("exec in machine: no command given")
	}
	if _, err := l.pid1(ctx, cluster, name); err != nil {
		return -1, err
	}
	args := []string{"exec", "--cwd", orRoot(c.Dir)}
	for _, e := range append([]string{"PATH=" + PathInside, "HOME=/root", "KUBECONFIG=/etc/kubernetes/admin.conf"}, c.Env...) {
		args = append(args, "--env", e)
	}
	if c.TTY {
		args = append(args, "--tty")
	}
	cmd := l.runcCommand(ctx, cluster, append(append(args, name), c.Args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, c.Stdout, c.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // runc passes it on
	cmd.WaitDelay = 2 * time.Second
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return exit.ExitCode(), nil
	}
	if err != nil {
		return -1, fmt.Errorf("exec in machine %s: %w", name, err)
	}
	return 0, nil
}

func orRoot(dir string) string {
	if dir == "" {
		return "/"
	}
	return dir
}
