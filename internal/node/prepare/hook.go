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

// Words of a hook are MARKER TIMEOUT PROGRAM ARGUMENT… . The marker's name is the hook's, a dot, and a hash of what it does.

func hookDone(_ context.Context, h Host, args []string) error {
	if len(args) == 0 {
		return errors.New("a hook without its marker")
	}
	if !h.exists(args[0]) {
		return errors.New("it has not run to its end")
	}
	return nil
}

// runHook leaves the marker when the command has ended well, and takes away those of what the hook did before.
func runHook(ctx context.Context, h Host, args []string) error {
	if len(args) < 3 {
		return errors.New("run a hook: want marker, timeout and command")
	}
	marker, command := args[0], args[2:]
	limit, err := time.ParseDuration(args[1])
	if err != nil {
		return fmt.Errorf("run a hook: %w", err)
	}
	if h.exists(marker) {
		return nil // only its timeout has changed
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it has not ended within %s and was killed", limit))
	defer cancel()
	if _, err := h.run(ctx, command...); err != nil {
		return err
	}
	if err := os.MkdirAll(h.path(filepath.Dir(marker)), 0o700); err != nil {
		return fmt.Errorf("make the folder of markers: %w", err)
	}
	if err := durable.WriteFile(h.path(marker), 0o600, []byte("done\n")); err != nil {
		return fmt.Errorf("write the hook's marker: %w", err)
	}
	return h.forgetEarlier(marker)
}

func (h Host) forgetEarlier(marker string) error {
	dir := filepath.Dir(marker)
	name, _, _ := strings.Cut(filepath.Base(marker), ".")
	entries, err := os.ReadDir(h.path(dir))
	if err != nil {
		return fmt.Errorf("look for earlier markers: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), name+".") && e.Name() != filepath.Base(marker) {
			if err := os.Remove(h.path(filepath.Join(dir, e.Name()))); err != nil {
				return fmt.Errorf("remove an earlier marker: %w", err)
			}
		}
	}
	return nil
}

func (h Host) exists(path string) bool {
	_, err := os.Lstat(h.path(path))
	return err == nil
}
