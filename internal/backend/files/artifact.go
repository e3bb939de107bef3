// SPDX-License-Identifier: Apache-2.0

package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/durable"
)

// observeArtifact does not read the blob: that it has the same inode, size and times as when it was verified is enough.
func (h *Host) observeArtifact(a plan.Artifact) (plan.State, error) {
	info, err := os.Lstat(a.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return absent(), nil
	}
	if err != nil {
		return plan.State{}, err
	}
	if info.Mode()&fs.ModeSymlink == 0 {
		return wrong("it is " + typeName(info.Mode()) + ", want a symlink into the store"), nil
	}
	blob, err := h.blobs.path(a.Digest)
	if err != nil {
		return plan.State{}, fmt.Errorf("artifact %s: %w", a.Name, err)
	}
	target, err := os.Readlink(a.Path)
	if err != nil {
		return plan.State{}, err
	}
	if target != blob {
		return wrong("it is " + filepath.Base(target) + ", want " + a.Digest), nil
	}
	why, err := h.blobs.unverified(a.Digest)
	if err != nil {
		return plan.State{}, err
	}
	if why != "" {
		return wrong(why), nil
	}
	return right(), nil
}

func (h *Host) makeArtifact(ctx context.Context, a plan.Artifact) error {
	blob, err := h.blobs.verify(ctx, a.Digest)
	if err != nil {
		return fmt.Errorf("take artifact %s: %w", a.Name, err)
	}
	if err := makeParent(a.Path); err != nil {
		return err
	}
	if info, err := os.Lstat(a.Path); err == nil && info.IsDir() {
		return fmt.Errorf("link %s: it is a folder; remove it by hand", a.Path)
	}
	tmp := filepath.Join(filepath.Dir(a.Path), "."+filepath.Base(a.Path)+".slipway")
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(blob, tmp); err != nil {
		return err
	}
	if err := os.Rename(tmp, a.Path); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return durable.SyncDir(filepath.Dir(a.Path))
}
