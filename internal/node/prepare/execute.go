// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

const keptOutput = 16 << 10

// execute runs a program in a process group of its own, so that nothing of it outlives ctx. Its output goes to the task's, too.
func (h Host) execute(ctx context.Context, env, args []string) (string, error) {
	kept := tail{limit: keptOutput}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = &kept, &kept
	if h.Out != nil {
		both := io.MultiWriter(h.Out, &kept)
		cmd.Stdout, cmd.Stderr = both, both
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 500 * time.Millisecond
	err := cmd.Run()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return string(kept.text), err
}

// quiet is the host whose programs are only asked: what they print is nobody's news.
func (h Host) quiet() Host {
	h.Out = nil
	return h
}

// whole is all that a program prints, for one that answers a question.
func (h Host) whole(ctx context.Context, args []string) (string, error) {
	if h.Execute != nil {
		return h.Execute(ctx, nil, args)
	}
	out, err := exec.CommandContext(ctx, args[0], args[1:]...).Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	return string(out), nil
}

// tail keeps the end of what is written to it.
type tail struct {
	limit int
	text  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.text = append(t.text, p...)
	if over := len(t.text) - t.limit; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(p), nil
}

func lastLine(out string) string {
	out = strings.TrimSpace(out)
	return out[strings.LastIndexByte(out, '\n')+1:]
}
