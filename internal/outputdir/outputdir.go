// SPDX-License-Identifier: Apache-2.0

// Package outputdir writes generated files into a directory that Slipway owns: it removes files of an earlier run and never
// touches a file that it has not written.
//
// Read [Write] first.
package outputdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/render"
)

// listFile has the names of the files that Slipway has written into a directory, one per line. A directory that has other files
// but no such list is not Slipway's.
const listFile = ".slipway-rendered"

// Write writes the files into a directory that is empty, missing, or was written by an earlier call, and removes files of
// earlier calls that are not among these. If the directory has anything else, Write fails and changes nothing. Each file
// appears only when it is complete. After an interruption the next call cleans up.
func Write(dir string, files []render.File) error {
	before, err := readList(dir)
	if err != nil {
		return err
	}
	owned := []string{filepath.Join(dir, listFile)}
	for _, name := range before {
		owned = append(owned, filepath.Join(dir, name))
	}
	if err := durable.RemoveTempFiles(owned...); err != nil {
		return err
	}
	if err := checkForeign(dir, before); err != nil {
		return err
	}
	now := make([]string, 0, len(files))
	for _, f := range files {
		if !filepath.IsLocal(f.Path) || f.Path == listFile || strings.ContainsAny(f.Path, "\n") {
			return fmt.Errorf("write %q: not a valid name of a file in the directory", f.Path)
		}
		now = append(now, f.Path)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	if err := writeList(dir, append(slices.Clone(before), now...)); err != nil { // before the first of them exists
		return err
	}
	for _, f := range files {
		path := filepath.Join(dir, f.Path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("make directory: %w", err)
		}
		if err := durable.WriteFile(path, os.FileMode(f.Mode).Perm(), f.Content); err != nil {
			return err
		}
	}
	if err := removeOld(dir, before, now); err != nil {
		return err
	}
	return writeList(dir, now)
}

// readList reads which files of the directory are Slipway's.
func readList(dir string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(dir, listFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the list of files written earlier: %w", err)
	}
	var out []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSuffix(line, "\n"); filepath.IsLocal(line) {
			out = append(out, line)
		}
	}
	return out, nil
}

func writeList(dir string, names []string) error {
	slices.Sort(names)
	text := strings.Join(slices.Compact(names), "\n") + "\n"
	return durable.WriteFile(filepath.Join(dir, listFile), 0o644, []byte(text))
}

// checkForeign refuses a directory with files that Slipway has not written. A link in place of one of its files is foreign, too.
func checkForeign(dir string, before []string) error {
	var foreign []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path == dir {
			return fs.SkipAll
		}
		if err != nil {
			return err
		}
		if d.IsDir() {
			return nil
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if name != listFile && (!slices.Contains(before, name) || !d.Type().IsRegular()) {
			foreign = append(foreign, name)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list the directory: %w", err)
	}
	if len(foreign) > 5 {
		foreign = append(foreign[:5], "…")
	}
	if len(foreign) > 0 {
		return fmt.Errorf("write into %s: it has files that slipway has not written (%s): choose an empty directory", dir, strings.Join(foreign, ", "))
	}
	return nil
}

// removeOld removes files that are no longer wanted, and directories that are empty then.
func removeOld(dir string, before, now []string) error {
	for _, name := range before {
		if slices.Contains(now, name) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove a file written earlier: %w", err)
		}
		for parent := filepath.Dir(name); parent != "."; parent = filepath.Dir(parent) {
			if os.Remove(filepath.Join(dir, parent)) != nil { // it is not empty
				break
			}
		}
	}
	return nil
}
