// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/durable"
)

func (s Spec) checkFiles() error {
	for p := range s.Files {
		if !filepath.IsLocal(p) || path.Clean(p) != p || p == "." || p == "store" || strings.HasPrefix(p, "store/") {
			return fmt.Errorf("machine %s: file %q: name a path below /var/lib/slipway that is not in its store", s.Name, p)
		}
	}
	return nil
}

// writeFiles gives a machine that was never booted its files. In doubt it was booted: then they are the machine's own.
func (l *Local) writeFiles(s Spec, old record) error {
	f := l.folders(s.Cluster, s.Name)
	_, err := os.Lstat(f.console()) // made just before the first boot
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("look whether machine %s was booted: %w", s.Name, err)
	}
	if err == nil || !old.Since.IsZero() {
		return nil
	}
	root := f.data("slipway")
	for _, p := range slices.Sorted(maps.Keys(s.Files)) {
		at := filepath.Join(root, p)
		if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
			return fmt.Errorf("give machine %s its files: %w", s.Name, err)
		}
		if err := durable.WriteFile(at, 0o600, s.Files[p]); err != nil {
			return fmt.Errorf("give machine %s its files: %w", s.Name, err)
		}
		for dir := filepath.Dir(at); dir != root; {
			dir = filepath.Dir(dir)
			if err := durable.SyncDir(dir); err != nil {
				return err
			}
		}
	}
	return nil
}
