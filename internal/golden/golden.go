// SPDX-License-Identifier: Apache-2.0

// Package golden compares what a function makes of a set of inputs with golden files, one of which is the base.
// The base stores its output in full and every other file stores the difference to it, so that a changed default
// changes one file and a reader of the others sees what their input changes. It is never part of what ships.
//
// Read [Check] first, then [Delta], which describes the format of a difference.
package golden

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

// Output makes the output of one golden file from its input, the first section of the file. It returns the name of
// the section and its text. Outputs are compared as differences if their section has the name of the base's.
type Output func(t *testing.T, input string) (section, text string)

// Check runs one subtest per testdata/*.txtar of the package under test. If update is set, it rewrites the files
// instead. The difference of a file is always the one to the base's current output, not to its stored one: a change
// that affects all outputs alike fails the base's subtest only.
func Check(t *testing.T, update bool, base string, output Output) {
	t.Helper()
	archives := Read(t)
	if archives[base] == nil {
		t.Fatalf("golden file %s is missing", base)
	}
	baseSection, baseText := output(t, Input(archives[base]))
	for name, archive := range archives {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			section, got := output(t, Input(archive))
			isDelta := section == baseSection && name != base
			if isDelta {
				section += ", changes to " + base
			}
			if update {
				data := got
				if isDelta {
					data = Delta(baseText, got)
				}
				archive.Files = append(archive.Files[:1], txtar.File{Name: section, Data: []byte(data)})
				if err := os.WriteFile(filepath.Join("testdata", name+".txtar"), txtar.Format(archive), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			if len(archive.Files) != 2 || archive.Files[1].Name != section {
				t.Fatalf("want the sections input and %q: rewrite with -update\ngot output:\n%s", section, got)
			}
			want := string(archive.Files[1].Data)
			if isDelta {
				var err error
				if want, err = Apply(baseText, want); err != nil {
					t.Fatalf("%v: rewrite with -update if this is intended", err)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("rewrite with -update if this is intended: %s (-want +got):\n%s", section, diff)
			}
		})
	}
}

// Read returns the golden files of the package under test by name, without ".txtar".
func Read(t testing.TB) map[string]*txtar.Archive {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("got no golden files in testdata, error %v", err)
	}
	out := map[string]*txtar.Archive{}
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if len(archive.Files) == 0 {
			t.Fatalf("%s has no sections", file)
		}
		out[strings.TrimSuffix(filepath.Base(file), ".txtar")] = archive
	}
	return out
}

// Input returns the first section of a golden file.
func Input(archive *txtar.Archive) string { return string(archive.Files[0].Data) }
