// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/slipway-project/slipway/internal/core/catalog"
)

// UnpackBundle copies a release's binaries into a folder, each verified while it is copied, and returns how many.
func (l *Launcher) UnpackBundle(ctx context.Context, r catalog.Release, folder string) (int, error) {
	bundle, store, err := l.Bundle(ctx, r, nil)
	if err != nil {
		return 0, err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return 0, fmt.Errorf("unpack bundle: %w", err)
	}
	for name, blob := range bundle.Binaries {
		if err := store.Take(ctx, blob.Digest, filepath.Join(folder, name), 0o755); err != nil {
			return 0, fmt.Errorf("unpack %s: %w", name, err)
		}
	}
	return len(bundle.Binaries), nil
}
