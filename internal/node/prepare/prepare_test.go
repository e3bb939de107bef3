// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// root returns a directory with the given files.
func root(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for path, text := range files {
		at := filepath.Join(dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// wantError checks that an error contains the text, or that there is none if the text is empty.
func wantError(t *testing.T, err error, text string) {
	t.Helper()
	switch {
	case text == "" && err != nil:
		t.Errorf("got error %v, want none", err)
	case text != "" && (err == nil || !strings.Contains(err.Error(), text)):
		t.Errorf("got error %v, want one that contains %q", err, text)
	}
}

// commands records what is executed and returns what answer returns.
type commands struct {
	ran    []string
	answer func(line string) (string, error)
}

func (c *commands) execute(_ context.Context, _, args []string) (string, error) {
	line := strings.Join(args, " ")
	c.ran = append(c.ran, line)
	if c.answer == nil {
		return "", nil
	}
	return c.answer(line)
}

func TestUnknownTask(t *testing.T) {
	t.Parallel()
	h := Host{Root: t.TempDir()}
	for _, args := range [][]string{nil, {"nosuch"}} {
		wantError(t, h.Do(t.Context(), args), "task")
		wantError(t, h.Done(t.Context(), args), "task")
	}
}
