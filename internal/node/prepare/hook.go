// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/durable"
)

// The arguments of the task hook are MARKER TIMEOUT PROGRAM ARGUMENT… . The marker file's name is the
// hook's name, a dot, and a hash of what the hook does.

func hookDone(_ context.Context, h Host, args []string) error {
	if len(args) == 0 {
		return errors.New("check hook: want a marker file")
	}
	if !h.exists(args[0]) {
		return errors.New("the hook has not completed yet")
	}
	return nil
}

// runHook writes the marker file when the command has succeeded, and removes the markers of the hook's
// earlier versions.
func runHook(ctx context.Context, h Host, args []string) error {
	if len(args) < 3 {
		return errors.New("run hook: want marker, timeout and command")
	}
	marker, command := args[0], args[2:]
	limit, err := time.ParseDuration(args[1])
	if err != nil {
		return fmt.Errorf("run hook: %w", err)
	}
	if h.exists(marker) {
		return nil // only the timeout has changed
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("timed out after %s and was killed", limit))
	defer cancel()
	if _, err := h.run(ctx, nil, command...); err != nil {
		return err
	}
	dir, file := filepath.Split(marker)
	if err := os.MkdirAll(h.path(dir), 0o700); err != nil {
		return fmt.Errorf("create directory of hook markers: %w", err)
	}
	if err := durable.WriteFile(h.path(marker), 0o600, []byte("done\n")); err != nil {
		return fmt.Errorf("write hook marker: %w", err)
	}
	hook, _, _ := strings.Cut(file, ".")
	entries, err := os.ReadDir(h.path(dir))
	if err != nil {
		return fmt.Errorf("list hook markers: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), hook+".") && e.Name() != file {
			if err := os.Remove(h.path(filepath.Join(dir, e.Name()))); err != nil {
				return fmt.Errorf("remove earlier hook marker: %w", err)
			}
		}
	}
	return nil
}
