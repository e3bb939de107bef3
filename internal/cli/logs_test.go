// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTail(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 100<<10) // longer than one block
	for name, test := range map[string]struct {
		content string
		n       int
		want    string
	}{
		"all":                 {"a\nb\n", -1, "a\nb\n"},
		"none":                {"a\nb\n", 0, ""},
		"last":                {"a\nb\n", 1, "b\n"},
		"more than there are": {"a\nb\n", 9, "a\nb\n"},
		"incomplete line":     {"a\nb", 1, "b"},
		"empty lines":         {"a\n\n\n", 2, "\n\n"},
		"an empty file":       {"", 3, ""},
		"across blocks":       {"a\n" + long + "\nb\n", 2, long + "\nb\n"},
		"one line per block":  {long + "\n" + long + "\n", 1, long + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "log")
			write(t, path, test.content)
			var out bytes.Buffer
			if err := showLog(t.Context(), &out, path, test.n, false); err != nil {
				t.Fatal(err)
			}
			if out.String() != test.want {
				t.Errorf("got %d bytes %.40q, want %d bytes %.40q", out.Len(), out.String(), len(test.want), test.want)
			}
		})
	}
}

// TestFollow appends to, truncates and replaces a file that is followed, and each time waits for the last line to be printed.
func TestFollow(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	write(t, path, "zero\none\n")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := showLog(ctx, w, path, 1, true)
		_ = w.Close()
		done <- err
	}()
	expect := func(want string) {
		t.Helper()
		var got string
		if _, err := fmt.Fscanln(r, &got); err != nil || got != want {
			t.Fatalf("got %q (%v), want %q", got, err, want)
		}
	}
	expect("one")
	add(t, path, "two\n")
	expect("two")
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	add(t, path, "3\n") // shorter than what was read
	expect("3")
	add(t, path, "last-of-old\n")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	write(t, path, "first-of-new\n")
	expect("last-of-old")
	expect("first-of-new")
	stop()
	if err := <-done; err != nil {
		t.Errorf("stopped: got error %v, want nil", err)
	}
}

func TestNoLog(t *testing.T) {
	t.Parallel()
	err := showLog(t.Context(), io.Discard, filepath.Join(t.TempDir(), "log"), -1, true)
	if err == nil || !strings.Contains(err.Error(), "does not exist yet") {
		t.Errorf("got %v, want an error that says that the log does not exist yet", err)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func add(t *testing.T, path, content string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(content); err != nil {
		t.Fatal(err)
	}
}
