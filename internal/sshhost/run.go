// SPDX-License-Identifier: Apache-2.0

package sshhost

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/crypto/ssh"
)

// Command is a shell script to run as root on a machine. Its arguments are $1, $2, …; all can be read there by ps, so secrets go
// through Stdin.
type Command struct {
	Script string
	Args   []string
	Stdin  io.Reader // optional
	Stdout io.Writer // optional
	Stderr io.Writer // optional
	TTY    bool      // give it a terminal
}

// ExitError says that a script has ended with another code than 0.
type ExitError struct {
	Code   int
	Stderr string // the last of it
}

func (e *ExitError) Error() string {
	return fmt.Sprintf("it ended with code %d: %s", e.Code, cmp.Or(strings.TrimSpace(e.Stderr), "it says nothing"))
}

// Run runs a script and returns its exit code. The error is about running it. When ctx ends, the session is closed.
func (h *Host) Run(ctx context.Context, c Command) (exitCode int, err error) {
	client, err := h.connected(ctx)
	if err != nil {
		return -1, err
	}
	session, err := client.NewSession()
	if err != nil {
		return -1, fmt.Errorf("run on %s: %w", h.Name, err)
	}
	defer func() { _ = session.Close() }() // it has ended by then, or is to end
	defer context.AfterFunc(ctx, func() { _ = session.Close() })()
	session.Stdin, session.Stdout, session.Stderr = c.Stdin, c.Stdout, c.Stderr
	if c.TTY {
		if err := session.RequestPty("xterm", 40, 120, ssh.TerminalModes{}); err != nil {
			return -1, fmt.Errorf("run on %s: %w", h.Name, err)
		}
	}
	err = session.Run(h.commandLine(c))
	var exit *ssh.ExitError
	switch {
	case err == nil:
		return 0, nil
	case errors.As(err, &exit) && exit.Signal() == "":
		return exit.ExitStatus(), nil
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	return -1, fmt.Errorf("run on %s: %w", h.Name, err)
}

// commandLine is what the far user's shell gets, which may be any: only single quotes are needed.
func (h *Host) commandLine(c Command) string {
	words := []string{"exec"}
	if h.user() != Root {
		words = append(words, "env", "LC_ALL=C", "sudo", "-n", "--") // what sudo says is read by callers, too
	}
	words = append(words, "sh", "-c", quote(c.Script), "slipway")
	for _, a := range c.Args {
		words = append(words, quote(a))
	}
	return strings.Join(words, " ")
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// Output runs a script that has to succeed, and returns what it says. Without success the error is an ExitError.
func (h *Host) Output(ctx context.Context, script string, args ...string) ([]byte, error) {
	return h.Feed(ctx, nil, script, args...)
}

// Feed is Output of a script that reads.
func (h *Host) Feed(ctx context.Context, in io.Reader, script string, args ...string) ([]byte, error) {
	var out bytes.Buffer
	errs := tail{}
	code, err := h.Run(ctx, Command{Script: script, Args: args, Stdin: in, Stdout: &out, Stderr: &errs})
	if err != nil {
		return nil, err
	}
	if code != 0 {
		return nil, fmt.Errorf("run on %s: %w", h.Name, &ExitError{code, errs.text()})
	}
	return out.Bytes(), nil
}

// tail keeps the last of what is written.
type tail struct{ buf []byte }

const tailSize = 2 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	t.buf = t.buf[max(0, len(t.buf)-tailSize):]
	return len(p), nil
}

func (t *tail) text() string { return string(t.buf) }
