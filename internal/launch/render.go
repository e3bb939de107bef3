// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/render"
)

// Form is one way to write a node's plan down for another program.
type Form struct {
	Name    string // "systemd"
	Summary string // a few words for the command's help
	Render  func(ctx context.Context, p Planned) (render.Rendered, error)
	Example string // optional: the other flags of an example for the command's help
}

// PlanForm is a form that says nothing but what stands in the plan.
func PlanForm(name, summary string, form func(p plan.Plan) (render.Rendered, error)) Form {
	return Form{Name: name, Summary: summary, Render: func(_ context.Context, p Planned) (render.Rendered, error) { return form(p.Plan) }}
}

// listFile names the files that Slipway has written into a folder, one per line. Without it a folder that is not empty is somebody
// else's.
const listFile = ".slipway-rendered"

// WriteFolder writes the files into a folder of their own: one that is empty or missing, or one that it has written before. Files
// of an earlier time that are not among these are removed. What it has not written is never touched: then nothing is done at all.
// Each file appears whole; when the work breaks off, the folder is known as ours and the next time mends it.
func WriteFolder(folder string, files []render.File) error {
	had, err := ours(folder)
	if err != nil {
		return err
	}
	if err := durable.RemoveTempFiles(in(folder, had)...); err != nil {
		return err
	}
	if err := foreign(folder, had); err != nil {
		return err
	}
	now := make([]string, 0, len(files))
	for _, f := range files {
		if !filepath.IsLocal(f.Path) || f.Path == listFile || strings.ContainsAny(f.Path, "\n") {
			return fmt.Errorf("write %q: this is no name of a file below the folder", f.Path)
		}
		now = append(now, f.Path)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	if err := keepList(folder, append(slices.Clone(had), now...)); err != nil { // before the first of them is there
		return err
	}
	for _, f := range files {
		path := filepath.Join(folder, f.Path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("make folder: %w", err)
		}
		if err := durable.WriteFile(path, os.FileMode(f.Mode).Perm(), f.Content); err != nil {
			return err
		}
	}
	if err := drop(folder, had, now); err != nil {
		return err
	}
	return keepList(folder, now)
}

// ours reads which files of the folder are Slipway's.
func ours(folder string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(folder, listFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read what was written before: %w", err)
	}
	var out []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSuffix(line, "\n"); filepath.IsLocal(line) {
			out = append(out, line)
		}
	}
	return out, nil
}

func in(folder string, names []string) []string {
	out := []string{filepath.Join(folder, listFile)}
	for _, n := range names {
		out = append(out, filepath.Join(folder, n))
	}
	return out
}

// foreign refuses a folder that holds anything else.
func foreign(folder string, had []string) error {
	var others []string
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path == folder {
			return fs.SkipAll
		}
		if err != nil {
			return err
		}
		if d.IsDir() {
			return nil
		}
		name, err := filepath.Rel(folder, path)
		if err != nil {
			return err
		}
		if name != listFile && (!slices.Contains(had, name) || !d.Type().IsRegular()) {
			others = append(others, name)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("look into the folder: %w", err)
	}
	if len(others) > 5 {
		others = append(others[:5], "…")
	}
	if len(others) > 0 {
		return fmt.Errorf("write into %s: there is what slipway has not written (%s): choose an empty folder", folder, strings.Join(others, ", "))
	}
	return nil
}

// drop removes what is not wanted any more, and folders that are empty then.
func drop(folder string, had, now []string) error {
	for _, name := range had {
		if slices.Contains(now, name) {
			continue
		}
		if err := os.Remove(filepath.Join(folder, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove what is not rendered any more: %w", err)
		}
		for dir := filepath.Dir(name); dir != "."; dir = filepath.Dir(dir) {
			if os.Remove(filepath.Join(folder, dir)) != nil { // it is not empty
				break
			}
		}
	}
	return nil
}

func keepList(folder string, names []string) error {
	slices.Sort(names)
	text := strings.Join(slices.Compact(names), "\n") + "\n"
	return durable.WriteFile(filepath.Join(folder, listFile), 0o644, []byte(text))
}
