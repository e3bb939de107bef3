// SPDX-License-Identifier: Apache-2.0

// Package prepare brings a machine's operating system to what a plan asks of it: kernel modules and settings, packages, accounts, swap,
// name, and users' hooks. Each is a task with words for arguments; the same words ask whether its work is done. It decides nothing,
// removes nothing, writes nothing that is right already, and leaves alone what belongs to a kernel that is not this machine's.
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
	"path/filepath"
	"slices"
	"strings"
)

// Host is the machine that is prepared.
type Host struct {
	Root    string // "/", or a folder that tests made
	Shared  bool   // the kernel is not this machine's
	Manager string // the distribution's package manager: apt, dnf, zypper, apk; empty: it is not known
	Out     io.Writer

	// Optional: tests have their own. Execute runs a program of the machine and returns the end of its output.
	Execute func(ctx context.Context, env, args []string) (string, error)
	// SetHostname and ClockSynced ask the kernel.
	SetHostname func(name string) error
	ClockSynced func() (bool, error)
}

// task is one kind of work. do is nil where somebody else has to make it true.
type task struct {
	done func(ctx context.Context, h Host, args []string) error
	do   func(ctx context.Context, h Host, args []string) error
}

func tasks() map[string]task {
	return map[string]task{
		"modules":   {modulesDone, loadModules},
		"sysctls":   {sysctlsDone, setSysctls},
		"packages":  {packagesDone, installPackages},
		"accounts":  {accountsDone, makeAccounts},
		"swap-off":  {swapIsOff, switchSwapOff},
		"swap-on":   {swapIsOn, nil},
		"hostname":  {hostnameDone, setHostname},
		"time-sync": {clockIsSynced, nil},
		"hook":      {hookDone, runHook},
	}
}

// Done returns nil when the task's work is done, otherwise why not. It changes nothing.
func (h Host) Done(ctx context.Context, args []string) error {
	t, rest, err := find(args)
	if err != nil {
		return err
	}
	return t.done(ctx, h, rest)
}

// Do does the task's work. Doing it again is no harm.
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
		return task{}, nil, fmt.Errorf("no task is named: there are %s", strings.Join(slices.Sorted(maps.Keys(tasks())), ", "))
	}
	t, ok := tasks()[args[0]]
	if !ok {
		return task{}, nil, fmt.Errorf("unknown task %q: this agent is older than the plan, update slipway on the node", args[0])
	}
	return t, args[1:], nil
}

func (h Host) say(format string, args ...any) {
	if h.Out != nil {
		fmt.Fprintf(h.Out, format+"\n", args...)
	}
}

func (h Host) path(p string) string { return filepath.Join(h.Root, p) }

// read is a file's text, and nothing for one that is not there.
func (h Host) read(p string) (text string, there bool) {
	data, err := os.ReadFile(h.path(p))
	return string(data), err == nil
}

// run executes a program of the machine.
func (h Host) run(ctx context.Context, args ...string) (string, error) {
	return h.runWith(ctx, nil, args...)
}

func (h Host) runWith(ctx context.Context, env []string, args ...string) (string, error) {
	execute := h.Execute
	if execute == nil {
		execute = h.execute
	}
	out, err := execute(ctx, env, args)
	if err != nil {
		return out, fmt.Errorf("%s: %w: %s", programOf(args), err, lastLine(out))
	}
	return out, nil
}

// programOf is the name of what a command line runs.
func programOf(args []string) string {
	if len(args) > 1 && args[0] == "/usr/bin/env" {
		return args[1]
	}
	return filepath.Base(args[0])
}

// lenient splits a word that may begin with a dash: what it names may be missing (as in sysctl.d(5)).
func lenient(word string) (string, bool) {
	bare, ok := strings.CutPrefix(word, "-")
	return bare, ok
}

// first joins what is wrong into one reason, shortened.
func first(wrong []string) error {
	const most = 3
	switch n := len(wrong); {
	case n == 0:
		return nil
	case n > most:
		return fmt.Errorf("%s; and %d more", strings.Join(wrong[:most], "; "), n-most)
	default:
		return fmt.Errorf("%s", strings.Join(wrong, "; "))
	}
}
