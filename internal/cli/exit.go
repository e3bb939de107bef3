// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/report"
)

// Exit codes, documented in `slipway help`.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitSpec        = 3
	exitPreflight   = 4
	exitTimeout     = 5
	exitInterrupted = 130 // what a shell says of a program that SIGINT ended
)

type usageError struct{ error }

// exitError is the exit code of a command that has said everything itself.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// interruptedError tells what happens to work that was stopped by the user.
type interruptedError string

func (e interruptedError) Error() string { return string(e) }

func codeOf(err error) int {
	var usage usageError
	if errors.As(err, &usage) || strings.HasPrefix(err.Error(), "unknown command") { // cobra's own has no type
		return exitUsage
	}
	var known *report.Error
	if !errors.As(err, &known) {
		return exitFailed
	}
	switch known.Kind {
	case report.InvalidSpec:
		return exitSpec
	case report.Preflight:
		return exitPreflight
	case report.TimedOut:
		return exitTimeout
	}
	return exitFailed
}

// rootHint is what to say of an error behind which lie only missing rights.
func rootHint(err error, uid int) string {
	if uid == 0 || !errors.Is(err, fs.ErrPermission) {
		return ""
	}
	return ": run it as root, with sudo"
}

// stopLimit keeps the promise that Ctrl-C works within a second, whatever the work is doing just then.
const stopLimit = 900 * time.Millisecond

// stoppable runs work that may be cut off at any moment. Once ctx has ended, it waits only a little.
func stoppable(ctx context.Context, work func() error) error {
	done := make(chan error, 1)
	go func() { done <- work() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	timer := time.NewTimer(stopLimit)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return ctx.Err()
	}
}
