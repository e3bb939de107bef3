// SPDX-License-Identifier: Apache-2.0

// Package prepare brings a machine's operating system to what a plan requires: kernel modules and settings,
// packages, accounts, swap, host name and the user's hooks. Each is a task with string arguments; the same
// arguments query whether the task is done. It makes no decisions, removes nothing, does not rewrite what
// is right already, and leaves a kernel that belongs to another host alone.
//
// Read [Host], [Host.Done] and [Host.Do].
//
//	h.Done(ctx, []string{"sysctls", "net.ipv4.ip_forward=1"}) // "net.ipv4.ip_forward is 0, want 1"
//	h.Do(ctx, []string{"sysctls", "net.ipv4.ip_forward=1"})
package prepare

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/slipway-project/slipway/internal/core/distro"
)

// Host is the machine that is prepared.
type Host struct {
	Root    string         // "/", or a directory that a test filled
	Shared  bool           // the kernel belongs to another host: modules, swap and most sysctls are left alone
	Manager distro.Manager // of the distribution; the zero value if it is unknown
	Out     io.Writer      // optional: receives what is done and what the programs print

	// Optional replacements for tests. Execute runs a program and returns the end of its output.
	Execute     func(ctx context.Context, env, args []string) (string, error)
	SetHostname func(name string) error
	ClockSynced func() (bool, error)
}

// task is one kind of work. do is nil if only a person or another program can make it true.
type task struct {
	done func(ctx context.Context, h Host, args []string) error
	do   func(ctx context.Context, h Host, args []string) error
}

func tasks() map[string]task {
	return map[string]task{
		"modules":   {modulesDone, loadModules},
		"sysctls":   {sysctlsDone, setSysctls},
		"packages":  {packagesDone, installPackages},
		"accounts":  {accountsDone, createAccounts},
		"swap-off":  {swapIsOff, switchSwapOff},
		"swap-on":   {swapIsOn, nil},
		"hostname":  {hostnameDone, setHostname},
		"time-sync": {clockIsSynced, nil},
		"hook":      {hookDone, runHook},
	}
}

// Done returns nil if the task's work is done, otherwise an error that says what is missing. It changes
// nothing.
func (h Host) Done(ctx context.Context, args []string) error {
	t, rest, err := find(args)
	if err != nil {
		return err
	}
	return t.done(ctx, h, rest)
}

// Do does the task's work. It may be called again when the work is done already.
func (h Host) Do(ctx context.Context, args []string) error {
	t, rest, err := find(args)
	if err != nil {
		return err
	}
	if t.do == nil {
		return t.done(ctx, h, rest)
	}
	return t.do(ctx, h, rest)
}

func find(args []string) (task, []string, error) {
	if len(args) == 0 {
		return task{}, nil, fmt.Errorf("find task: no name given (want one of %s)", strings.Join(slices.Sorted(maps.Keys(tasks())), ", "))
	}
	t, ok := tasks()[args[0]]
	if !ok {
		return task{}, nil, fmt.Errorf("find task %q: unknown: this agent is older than the plan (update slipway on the node)", args[0])
	}
	return t, args[1:], nil
}

func (h Host) log(format string, args ...any) {
	if h.Out != nil {
		fmt.Fprintf(h.Out, format+"\n", args...)
	}
}

func (h Host) path(p string) string { return filepath.Join(h.Root, p) }

// read returns a file's text; ok is false if it cannot be read.
func (h Host) read(p string) (text string, ok bool) {
	data, err := os.ReadFile(h.path(p))
	return string(data), err == nil
}

func (h Host) exists(path string) bool {
	_, err := os.Lstat(h.path(path))
	return err == nil
}

// run runs a program with additional environment variables and returns the end of its output. The error
// names the program and ends with the last line of its output.
func (h Host) run(ctx context.Context, env []string, args ...string) (string, error) {
	execute := h.Execute
	if execute == nil {
		execute = h.execute
	}
	out, err := execute(ctx, env, args)
	if err != nil {
		name := filepath.Base(args[0])
		if len(args) > 1 && args[0] == "/usr/bin/env" {
			name = args[1]
		}
		text := strings.TrimSpace(out)
		return out, fmt.Errorf("%s: %w: %s", name, err, text[strings.LastIndexByte(text, '\n')+1:])
	}
	return out, nil
}

// byPath is a command line whose program is looked up in PATH.
func byPath(args ...string) []string { return append([]string{"/usr/bin/env"}, args...) }

// execute runs a program in a process group of its own, so that no child of it outlives ctx. Its output is
// also copied to h.Out.
func (h Host) execute(ctx context.Context, env, args []string) (string, error) {
	kept := tail{limit: 16 << 10}
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

// output runs a program that answers a question and returns its whole standard output. Nothing is copied to
// h.Out.
func (h Host) output(ctx context.Context, args []string) (string, error) {
	if h.Execute != nil {
		return h.Execute(ctx, nil, args)
	}
	out, err := exec.CommandContext(ctx, args[0], args[1:]...).Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	return string(out), nil
}

// tail keeps the last limit bytes of what is written to it.
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

// optional splits an argument that may begin with a dash: what it names may be missing, as in sysctl.d(5).
func optional(arg string) (name string, ok bool) { return strings.CutPrefix(arg, "-") }

// summary joins reasons into one error and shortens a long list; nil if there are none.
func summary(reasons []string) error {
	const most = 3
	switch n := len(reasons); {
	case n == 0:
		return nil
	case n > most:
		return fmt.Errorf("%s; and %d more", strings.Join(reasons[:most], "; "), n-most)
	default:
		return fmt.Errorf("%s", strings.Join(reasons, "; "))
	}
}
