// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// removeCgroups removes the groups of the units and of the kubelet's pods, of which nothing runs any more, in each hierarchy.
func removeCgroups(units []string) error {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var errs []error
	for line := range strings.Lines(string(data)) {
		front, back, _ := strings.Cut(line, " - ")
		f := strings.Fields(front)
		if len(f) < 5 || !strings.HasPrefix(back, "cgroup") {
			continue
		}
		errs = append(errs, removeGroup(filepath.Join(f[4], "kubepods")))
		for _, unit := range units {
			errs = append(errs, removeGroup(filepath.Join(f[4], "slipway", unit)))
		}
	}
	return errors.Join(errs...)
}

// removeGroup removes a group and those below it, deepest first. Their files go with them.
func removeGroup(dir string) error {
	var groups []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			groups = append(groups, path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("list cgroups: %w", err)
	}
	var errs []error
	for _, group := range slices.Backward(groups) {
		errs = append(errs, gone(group))
	}
	return errors.Join(errs...)
}
