// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/testkit"
)

// Result is the exit code and the output of a program that has ended.
type Result struct {
	Code        int
	Out, Err    string
	Elapsed     time.Duration
	commandLine string
}

// String returns the command line, the exit code and the last lines of the output, for failure messages.
func (r Result) String() string {
	return fmt.Sprintf("%s: exit code %d after %.1f s\n%s%s", r.commandLine, r.Code, r.Elapsed.Seconds(), lastLines(r.Out, 40), lastLines(r.Err, 40))
}

func lastLines(s string, n int) string {
	const width = 240 // CI keeps only a short part of a failed test's output
	lines := strings.SplitAfter(s, "\n")
	lines = lines[max(0, len(lines)-n):]
	for i, line := range lines {
		if len(line) > width {
			lines[i] = line[:width] + "…\n"
		}
	}
	return strings.Join(lines, "")
}

// Slipway runs a sub-command of slipway on this cluster.
func (c *Cluster) Slipway(args ...string) Result {
	c.T.Helper()
	return run(c.T, upLimit+time.Minute, nil, c.Bin, c.line(args)...)
}

// line adds --name to a command line, and to an up the cluster's init system and form.
func (c *Cluster) line(args []string) []string {
	if args[0] == "up" && c.Init != "" {
		args = append(slices.Clone(args), "--init", string(c.Init))
	}
	if args[0] == "up" && c.Form != "" {
		args = c.withForm(args)
	}
	if slices.Contains([]string{"node", "machine", "token"}, args[0]) { // they have sub-commands
		return append(slices.Clone(args), "--name", c.Name)
	}
	// Right after the sub-command: exec and kubectl pass the rest on.
	return append([]string{args[0], "--name", c.Name}, args[1:]...)
}

// Running is a sub-command that the test disturbs. The test calls Wait.
type Running struct {
	*exec.Cmd
	output string // path of the file with both streams
}

// Output returns everything that the command has written so far.
func (r Running) Output() string {
	text, _ := os.ReadFile(r.output) // exists until the end of the test
	return string(text)
}

// WaitForOutput waits for the first output. A signal before that would hit the Go runtime's start-up, not slipway.
func (r Running) WaitForOutput(t testing.TB) {
	t.Helper()
	testkit.Until(t, 20*time.Second, "slipway writes its first line", func() error {
		if r.Output() == "" {
			return errors.New("no output")
		}
		return nil
	})
}

// Start starts a sub-command on this cluster.
func (c *Cluster) Start(args ...string) Running {
	c.T.Helper()
	return start(c.T, c.Bin, c.line(args)...)
}

func start(t testing.TB, name string, args ...string) Running {
	t.Helper()
	file, err := os.CreateTemp(t.TempDir(), "output")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cmd := exec.Command(name, args...) //nolint:noctx // the test signals it and waits for it
	cmd.Stdout, cmd.Stderr = file, file
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // a failed test may leave it running, and it holds the cluster's lock
	return Running{cmd, file.Name()}
}

// Run runs a program and returns its exit code, whatever it is.
func Run(t testing.TB, name string, args ...string) Result {
	t.Helper()
	return run(t, time.Minute, nil, name, args...)
}

func run(t testing.TB, limit time.Duration, in io.Reader, name string, args ...string) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit) // not t.Context: cleanups run programs too
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &out, &errs
	cmd.Env = append(os.Environ(), "NO_COLOR=1")
	cmd.WaitDelay = 5 * time.Second // its children may keep the output open
	begun := time.Now()
	err := cmd.Run()
	r := Result{Out: out.String(), Err: errs.String(), Elapsed: time.Since(begun), commandLine: name + " " + strings.Join(args, " ")}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		t.Fatalf("%s\ntimed out after %s", r, limit)
	case errors.As(err, &exit):
		r.Code = exit.ExitCode()
	case err != nil:
		t.Fatalf("%s: %v", r, err)
	}
	return r
}
