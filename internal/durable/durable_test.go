// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type note struct {
	Text string
	N    int
}

func TestWriteFile(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]os.FileMode{"private": 0o600, "public": 0o644, "wider than the umask": 0o666, "script": 0o755} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "f.json")
			for _, content := range []string{"one", "longer than one", ""} {
				if err := WriteFile(path, mode, []byte(content)); err != nil {
					t.Fatal(err)
				}
				got, err := os.ReadFile(path)
				if err != nil || string(got) != content {
					t.Fatalf("got content %q, %v; want %q", got, err, content)
				}
			}
			info, err := os.Stat(path)
			if err != nil || info.Mode() != mode {
				t.Errorf("got mode %v, %v; want %v", info.Mode(), err, mode)
			}
			onlyFiles(t, filepath.Dir(path), "f.json")
		})
	}
}

func TestWriteFileReplacesSymlink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	target, path := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	must(t, os.WriteFile(target, []byte("mine"), 0o644), os.Symlink(target, path), WriteFile(path, 0o600, []byte("new")))
	if got, _ := os.ReadFile(target); string(got) != "mine" {
		t.Errorf("the symlink was followed: got target content %q", got)
	}
}

func TestWriteFileLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "d"), 0o755))
	if err := WriteFile(filepath.Join(dir, "d"), 0o600, nil); err == nil {
		t.Error("write over a directory: got nil, want an error")
	}
	onlyFiles(t, dir, "d")
}

// RemoveTempFiles matches names literally, even if they contain glob characters.
func TestRemoveTempFiles(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a[b]")
	must(t, os.Mkdir(dir, 0o700))
	for _, name := range []string{"f", ".f.12-0.tmp", ".f.12-13.tmp", ".f.tmp", ".g.12-0.tmp", ".f.x-0.tmp"} {
		must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	must(t, RemoveTempFiles(filepath.Join(dir, "f"), "", filepath.Join(dir, "never")))
	onlyFiles(t, dir, ".f.tmp", ".f.x-0.tmp", ".g.12-0.tmp", "f")
}

func TestLoad(t *testing.T) {
	t.Parallel()
	first, second := note{"first", 1}, note{"second", 2}
	tests := map[string]struct {
		damage  func(path string) error
		want    note
		wantErr error
	}{
		"intact":                        {func(string) error { return nil }, second, nil},
		"newest lost":                   {os.Remove, first, nil},
		"newest empty":                  {func(p string) error { return os.Truncate(p, 0) }, first, nil},
		"previous lost":                 {func(p string) error { return os.Remove(p + ".prev") }, second, nil},
		"newest lost, previous damaged": {func(p string) error { return errors.Join(os.Remove(p), os.Truncate(p+".prev", 5)) }, note{}, ErrDamaged},
		"both damaged":                  {func(p string) error { return errors.Join(os.Truncate(p, 7), os.Truncate(p+".prev", 5)) }, note{}, ErrDamaged},
		"newest damaged, previous lost": {func(p string) error { return errors.Join(os.Truncate(p, 7), os.Remove(p+".prev")) }, note{}, ErrDamaged},
		"both gone":                     {func(p string) error { return errors.Join(os.Remove(p), os.Remove(p+".prev")) }, note{}, fs.ErrNotExist},
		"newer schema":                  {func(p string) error { return Save(p, 2, second) }, note{}, ErrSchema},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "r")
			must(t, Save(path, 1, first), Save(path, 1, second), tt.damage(path))
			var got note
			err := Load(path, 1, &got)
			if !errors.Is(err, tt.wantErr) || (tt.wantErr != fs.ErrNotExist && errors.Is(err, fs.ErrNotExist)) {
				t.Errorf("got error %v, want %v", err, tt.wantErr)
			}
			if diff := cmp.Diff(tt.want, got); err == nil && diff != "" {
				t.Error(diff)
			}
		})
	}
}

// After any truncation or bit flip of the newest generation, Read returns the previous one.
func TestDamageAtEveryOffset(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "r")
	first := note{"first", 1}
	must(t, Save(path, 1, first), Save(path, 1, note{"second", 2}))
	sound, err := os.ReadFile(path)
	must(t, err)
	check := func(what string, offset int, data []byte) {
		must(t, os.WriteFile(path, data, 0o600))
		var got note
		if recovered, err := Read(path, 1, &got); err != nil || got != first || !recovered {
			t.Fatalf("%s at %d: got %+v, recovered=%v, %v", what, offset, got, recovered, err)
		}
	}
	for i := range sound {
		check("truncated", i, sound[:i])
		for bit := range 8 {
			bad := append([]byte(nil), sound...)
			bad[i] ^= 1 << bit
			check("flipped", i, bad)
		}
	}
	check("appended", len(sound), append(append([]byte(nil), sound...), 0))
}

func TestSaveKeepsIntactPrevious(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "r")
	must(t, Save(path, 1, note{"first", 1}), Save(path, 1, note{"second", 2}))
	must(t, os.Truncate(path, 9), Save(path, 1, note{"third", 3}), os.Truncate(path, 9))
	var got note
	if err := Load(path, 1, &got); err != nil || got.N != 1 {
		t.Errorf("got %+v, %v; want the first: a damaged record must not replace it", got, err)
	}
}

// A crash between the two renames leaves both names on one file. The next Save must not leave a third one.
func TestSaveAfterCrash(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "r")
	must(t, Save(path, 1, note{"first", 1}), os.Link(path, path+prevExt), Save(path, 1, note{"second", 2}))
	onlyFiles(t, dir, "r", "r.prev")
	must(t, os.Truncate(path, 9))
	var got note
	if err := Load(path, 1, &got); err != nil || got.N != 1 {
		t.Errorf("got %+v, %v; want the first", got, err)
	}
}

func onlyFiles(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files in the directory (-want +got):\n%s", diff)
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}
