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

// Result is how a program ended.
type Result struct {
	Code        int
	Out, Err    string
	Elapsed     time.Duration
	commandLine string
}

// String is what a failed test prints.
func (r Result) String() string {
	return fmt.Sprintf("%s: exit code %d after %.1f s\n%s%s", r.commandLine, r.Code, r.Elapsed.Seconds(), lastLines(r.Out, 40), lastLines(r.Err, 40))
}

func lastLines(s string, n int) string {
	const width = 240 // what CI keeps of a failed test is short
	lines := strings.SplitAfter(s, "\n")
	lines = lines[max(0, len(lines)-n):]
	for i, line := range lines {
		if len(line) > width {
			lines[i] = line[:width] + "…\n"
		}
	}
	return strings.Join(lines, "")
}

// Slipway runs a sub-command on this cluster.
func (c *Cluster) Slipway(args ...string) Result {
	c.T.Helper()
	return run(c.T, upLimit+time.Minute, nil, c.Bin, c.line(args)...)
}

// line is the command line: an up makes machines with the cluster's kind of init.
func (c *Cluster) line(args []string) []string {
	if args[0] == "up" && c.Init != "" {
		args = append(slices.Clone(args), "--init", string(c.Init))
	}
	if args[0] == "up" && c.Form != "" {
		args = c.formed(args)
	}
	return named(c.Name, args)
}

// named puts --name behind the sub-command, where also those take it that hand on the rest. Commands of two words have it at
// the end.
func named(name string, args []string) []string {
	if slices.Contains([]string{"node", "machine", "token"}, args[0]) {
		return append(slices.Clone(args), "--name", name)
	}
	return append([]string{args[0], "--name", name}, args[1:]...)
}

// Running is a sub-command at work.
type Running struct {
	*exec.Cmd
	said string // path of the file that holds its output
}

// Said is everything that it has written so far.
func (r Running) Said() string {
	text, _ := os.ReadFile(r.said) // the file is there as long as the test
	return string(text)
}

// Speaks waits for the first word: a signal that comes sooner meets the loader, not slipway.
func (r Running) Speaks(t testing.TB) {
	t.Helper()
	testkit.Until(t, 20*time.Second, "slipway says something", func() error {
		if r.Said() == "" {
			return errors.New("it is silent")
		}
		return nil
	})
}

// Start begins a sub-command that the test wants to disturb. The test calls Wait.
func (c *Cluster) Start(args ...string) Running {
	c.T.Helper()
	file, err := os.CreateTemp(c.T.TempDir(), "said")
	if err != nil {
		c.T.Fatal(err)
	}
	defer file.Close()
	cmd := exec.Command(c.Bin, c.line(args)...) //nolint:noctx // the test signals it, and waits for it
	cmd.Stdout, cmd.Stderr = file, file
	if err := cmd.Start(); err != nil {
		c.T.Fatal(err)
	}
	c.T.Cleanup(func() { _ = cmd.Process.Kill() }) // a failed test may have left it; it would hold the cluster's lock
	return Running{cmd, file.Name()}
}

// Run runs any program; an exit code that is not 0 is for the caller to judge.
func Run(t testing.TB, name string, args ...string) Result {
	t.Helper()
	return run(t, time.Minute, nil, name, args...)
}

func run(t testing.TB, limit time.Duration, in io.Reader, name string, args ...string) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit) // cleanups run it too, after t.Context has ended
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &out, &errs
	cmd.Env = append(os.Environ(), "NO_COLOR=1")
	cmd.WaitDelay = 5 * time.Second // what it has started may hold its output open
	begun := time.Now()
	err := cmd.Run()
	r := Result{Out: out.String(), Err: errs.String(), Elapsed: time.Since(begun), commandLine: name + " " + strings.Join(args, " ")}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		t.Fatalf("%s\nit does not end within %s", r, limit)
	case errors.As(err, &exit):
		r.Code = exit.ExitCode()
	case err != nil:
		t.Fatalf("%s: %v", r, err)
	}
	return r
}
