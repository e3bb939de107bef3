// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// GC removes every blob that is in none of the bundles to keep, and returns how
// many bytes that gave. Records stay: they are small, and one whose blobs are
// gone counts as not built. Keeping nothing is refused, because an empty list
// more often means "could not find out" than "remove all".
func GC(ctx context.Context, s *Store, keep ...Bundle) (freed int64, err error) {
	kept := map[Digest]bool{}
	for _, b := range keep {
		for d := range b.blobs() {
			kept[d] = true
		}
	}
	if len(kept) == 0 {
		return 0, errors.New("collect garbage: no bundle to keep")
	}
	unlock, err := s.lock(ctx, "removing old files", func(string) {})
	if err != nil {
		return 0, err
	}
	defer unlock()
	s.sweep()
	entries, err := os.ReadDir(s.blobs())
	if err != nil {
		return 0, fmt.Errorf("collect garbage: %w", err)
	}
	for _, e := range entries {
		d, err := ParseDigest("sha256:" + e.Name())
		if err != nil || kept[d] {
			continue // what we did not put there is not ours to remove
		}
		info, err := e.Info()
		if err != nil {
			return freed, fmt.Errorf("collect garbage: %w", err)
		}
		if err := os.Remove(filepath.Join(s.blobs(), e.Name())); err != nil {
			return freed, fmt.Errorf("collect garbage: %w", err)
		}
		freed += info.Size()
	}
	return freed, nil
}
