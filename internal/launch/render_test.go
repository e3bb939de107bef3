// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/render"
)

// tree is what a folder holds: path → mode and content.
func tree(t *testing.T, folder string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == folder {
			return err
		}
		name, _ := filepath.Rel(folder, path)
		if d.IsDir() {
			out[name+"/"] = ""
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		out[name] = info.Mode().String() + " " + string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestWriteFolder(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "new", "out")
	write := func(files ...render.File) {
		t.Helper()
		if err := WriteFolder(folder, files); err != nil {
			t.Fatal(err)
		}
	}
	write(render.File{Path: "a/b/one", Mode: 0o600, Content: []byte("1")}, render.File{Path: "two", Mode: 0o644, Content: []byte("2")})
	if err := os.WriteFile(filepath.Join(folder, ".two.1-0.tmp"), nil, 0o600); err != nil { // a run that broke off
		t.Fatal(err)
	}
	write(render.File{Path: "two", Mode: 0o755, Content: []byte("3")})
	want := map[string]string{".slipway-rendered": "-rw-r--r-- two\n", "two": "-rwxr-xr-x 3"}
	if diff := cmp.Diff(want, tree(t, folder)); diff != "" {
		t.Errorf("folder (-want +got):\n%s", diff)
	}
	if err := os.WriteFile(filepath.Join(folder, "mine"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := tree(t, folder)
	err := WriteFolder(folder, []render.File{{Path: "mine", Mode: 0o644}, {Path: "three", Mode: 0o644}})
	if err == nil || !strings.Contains(err.Error(), "there is what slipway has not written (mine): choose an empty folder") {
		t.Errorf("error %v", err)
	}
	if diff := cmp.Diff(before, tree(t, folder)); diff != "" {
		t.Errorf("a refused folder has changed (-before +after):\n%s", diff)
	}
}

func TestWriteFolderRefuses(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]string{"above": "../x", "absolute": "/x", "the list": listFile, "two lines": "a\nb"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			if err := WriteFolder(folder, []render.File{{Path: "ok"}, {Path: path}}); err == nil {
				t.Error("taken")
			}
			if got := tree(t, folder); len(got) > 0 {
				t.Errorf("something was written: %v", got)
			}
		})
	}
	t.Run("a link in the place of a file of ours", func(t *testing.T) {
		t.Parallel()
		folder, other := t.TempDir(), t.TempDir()
		if err := WriteFolder(folder, []render.File{{Path: "a/f", Mode: 0o644}}); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(filepath.Join(folder, "a")); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(other, filepath.Join(folder, "a")); err != nil {
			t.Fatal(err)
		}
		if err := WriteFolder(folder, []render.File{{Path: "a/f", Mode: 0o644}}); err == nil {
			t.Error("written through a link")
		}
	})
}
