// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/slipway-project/slipway/internal/artifact"
	"github.com/slipway-project/slipway/internal/core/catalog"
)

// inStore tells which parts of a release the store has, and whether that is all. A host without a store stays without one.
func (l *Launcher) inStore(ctx context.Context, r catalog.Release) (have artifact.Bundle, complete bool, err error) {
	if _, err := os.Stat(filepath.Join(l.Root, "store")); errors.Is(err, fs.ErrNotExist) {
		return artifact.Bundle{}, false, nil
	}
	store, err := l.Store()
	if err != nil {
		return artifact.Bundle{}, false, err
	}
	return artifact.Lookup(ctx, store, r)
}
