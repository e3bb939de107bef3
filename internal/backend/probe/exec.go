// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/slipway-project/slipway/internal/core/plan"
)

// askExec runs the command in a process group of its own, so that nothing of it outlives the attempt.
func askExec(ctx context.Context, pr plan.Probe) error {
	if len(pr.Args) == 0 {
		return errors.New("the probe names no command")
	}
	limit, cancel := context.WithTimeout(ctx, execTimeout)
	defer cancel()
	var out tail
	cmd := exec.CommandContext(limit, pr.Args[0], pr.Args[1:]...)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 500 * time.Millisecond // for a grandchild that keeps the pipe open
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case limit.Err() != nil:
		return fmt.Errorf("no end within %s", execTimeout)
	case errors.As(err, &exit):
		return fmt.Errorf("%s: %s", exit.ProcessState, short(out.lastLine()))
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%s does not exist", pr.Args[0])
	case err != nil:
		return err
	case !strings.Contains(string(out), pr.Contains):
		return fmt.Errorf("prints %q without %q", short(out.lastLine()), pr.Contains)
	}
	return nil
}

// tail keeps the last maxAnswer bytes written to it.
type tail []byte

func (t *tail) Write(p []byte) (int, error) {
	*t = append(*t, p...)
	if over := len(*t) - maxAnswer; over > 0 {
		*t = append((*t)[:0], (*t)[over:]...)
	}
	return len(p), nil
}

func (t tail) lastLine() string {
	s := strings.TrimSpace(string(t))
	return s[strings.LastIndexByte(s, '\n')+1:]
}
