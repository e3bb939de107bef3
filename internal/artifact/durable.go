// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// writeDurably makes path hold what write gives, or leaves it as it was: a
// temporary file in tmp (same file system), fsync, rename, fsync of the folder.
// After an error or a crash no half file bears the name.
func writeDurably(tmp, path string, mode fs.FileMode, write func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(tmp, ".slipway-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(f.Name())
		}
	}()
	if err := write(f); err != nil {
		return err
	}
	if err := f.Chmod(mode); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// reader stops with the context's error once ctx is done, so that a copy of a
// large file can be cancelled.
type reader struct {
	ctx context.Context //nolint:containedctx // io.Reader has no room for it
	r   io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}
