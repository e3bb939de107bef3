// SPDX-License-Identifier: Apache-2.0

package outputdir

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-project/slipway/internal/render"
)

// tree is the content of a directory: path → mode and content.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, _ := filepath.Rel(dir, path)
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

func TestWrite(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new", "out")
	write := func(files ...render.File) {
		t.Helper()
		if err := Write(dir, files); err != nil {
			t.Fatal(err)
		}
	}
	write(render.File{Path: "a/b/one", Mode: 0o600, Content: []byte("1")}, render.File{Path: "two", Mode: 0o644, Content: []byte("2")})
	if err := os.WriteFile(filepath.Join(dir, ".two.1-0.tmp"), nil, 0o600); err != nil { // an interrupted run
		t.Fatal(err)
	}
	write(render.File{Path: "two", Mode: 0o755, Content: []byte("3")})
	want := map[string]string{".slipway-rendered": "-rw-r--r-- two\n", "two": "-rwxr-xr-x 3"}
	if diff := cmp.Diff(want, tree(t, dir)); diff != "" {
		t.Errorf("dir (-want +got):\n%s", diff)
	}
	if err := os.WriteFile(filepath.Join(dir, "mine"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := tree(t, dir)
	err := Write(dir, []render.File{{Path: "mine", Mode: 0o644}, {Path: "three", Mode: 0o644}})
	if err == nil || !strings.Contains(err.Error(), "it has files that slipway has not written (mine): choose an empty directory") {
		t.Errorf("error %v", err)
	}
	if diff := cmp.Diff(before, tree(t, dir)); diff != "" {
		t.Errorf("refused directory (-before +after):\n%s", diff)
	}
}

func TestWriteRefuses(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]string{"above": "../x", "absolute": "/x", "the list": listFile, "two lines": "a\nb"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := Write(dir, []render.File{{Path: "ok"}, {Path: path}}); err == nil {
				t.Error("got no error, want a refusal")
			}
			if got := tree(t, dir); len(got) > 0 {
				t.Errorf("got files %v, want none", got)
			}
		})
	}
	t.Run("a link in place of a file", func(t *testing.T) {
		t.Parallel()
		dir, other := t.TempDir(), t.TempDir()
		if err := Write(dir, []render.File{{Path: "a/f", Mode: 0o644}}); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(filepath.Join(dir, "a")); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(other, filepath.Join(dir, "a")); err != nil {
			t.Fatal(err)
		}
		if err := Write(dir, []render.File{{Path: "a/f", Mode: 0o644}}); err == nil {
			t.Error("got a file written through a link, want a refusal")
		}
	})
}
