// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/slipway-project/slipway/internal/durable"
)

// Store keeps files by their hash. Its methods may be called from several
// goroutines and several processes at once: a blob appears whole or not at all.
type Store struct {
	root string // absolute
}

// Open makes the folders of a store below root, if they are not there.
func Open(root string) (*Store, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	s := &Store{root: root}
	for _, dir := range []string{s.blobs(), s.records(), s.tmp()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("open store: %w", err)
		}
	}
	return s, nil
}

func (s *Store) blobs() string   { return filepath.Join(s.root, "blobs", "sha256") }
func (s *Store) records() string { return filepath.Join(s.root, "records") }
func (s *Store) tmp() string     { return filepath.Join(s.root, "tmp") }

// Path is where the blob is or would be. Who reads it there skips the check
// that Take does.
func (s *Store) Path(d Digest) string { return filepath.Join(s.blobs(), d.Hex()) }

// Add copies r into the store. A blob that exists already is replaced, which
// mends a damaged one.
func (s *Store) Add(ctx context.Context, r io.Reader) (Blob, error) {
	return s.add(ctx, r, nil)
}

// add refuses content that is not what want says, before it gets a name.
func (s *Store) add(ctx context.Context, r io.Reader, want *Blob) (Blob, error) {
	f, err := os.CreateTemp(s.tmp(), "add-*")
	if err != nil {
		return Blob{}, fmt.Errorf("add blob: %w", err)
	}
	defer os.Remove(f.Name()) // gone already if all went well
	hash := sha256.New()
	size, err := io.Copy(io.MultiWriter(f, hash), reader{ctx, r})
	if err == nil {
		err = errors.Join(f.Chmod(0o755), f.Sync())
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return Blob{}, fmt.Errorf("add blob: %w", err)
	}
	b := Blob{Digest: Digest("sha256:" + hex.EncodeToString(hash.Sum(nil))), Size: size}
	if want != nil && b != *want {
		return Blob{}, fmt.Errorf("add blob: want %s of %d bytes, got %s of %d: %w",
			want.Digest, want.Size, b.Digest, b.Size, ErrDamaged)
	}
	if err := os.Rename(f.Name(), s.Path(b.Digest)); err != nil {
		return Blob{}, fmt.Errorf("add blob: %w", err)
	}
	if err := durable.SyncDir(s.blobs()); err != nil {
		return Blob{}, fmt.Errorf("add blob: %w", err)
	}
	return b, nil
}

// AddFile is Add of a file.
func (s *Store) AddFile(ctx context.Context, path string) (Blob, error) {
	f, err := os.Open(path)
	if err != nil {
		return Blob{}, fmt.Errorf("add blob: %w", err)
	}
	defer f.Close()
	return s.Add(ctx, f)
}

// Verify reads the whole blob. The error is ErrDamaged if its content is
// another's, and fs.ErrNotExist if it is not there. A damaged blob is set
// aside, so that the next Build makes it again.
func (s *Store) Verify(ctx context.Context, d Digest) error {
	return s.copyTo(ctx, d, io.Discard)
}

// Take copies a blob to dst and checks its hash on the way, with the errors of
// Verify. The folder of dst must be there. dst appears whole
// and right, or stays as it was; a process that runs the old file goes on with
// it.
func (s *Store) Take(ctx context.Context, d Digest, dst string, mode fs.FileMode) error {
	if err := s.take(ctx, d, dst, mode); err != nil {
		return fmt.Errorf("take %s: %w", filepath.Base(dst), err)
	}
	return nil
}

func (s *Store) take(ctx context.Context, d Digest, dst string, mode fs.FileMode) (err error) {
	f, err := os.CreateTemp(filepath.Dir(dst), ".slipway-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	err = s.copyTo(ctx, d, f)
	if err == nil {
		err = errors.Join(f.Chmod(mode), f.Sync())
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), dst); err != nil {
		return err
	}
	return durable.SyncDir(filepath.Dir(dst))
}

func (s *Store) copyTo(ctx context.Context, d Digest, w io.Writer) error {
	if _, err := ParseDigest(d.String()); err != nil {
		return err
	}
	f, err := os.Open(s.Path(d))
	if err != nil {
		return fmt.Errorf("read blob: %w", err)
	}
	defer f.Close()
	hash := sha256.New()
	if _, err := io.Copy(io.MultiWriter(w, hash), reader{ctx, f}); err != nil {
		return fmt.Errorf("read blob %s: %w", d, err)
	}
	if got := hex.EncodeToString(hash.Sum(nil)); got != d.Hex() {
		// The evidence stays in tmp until the next build sweeps it.
		_ = os.Rename(s.Path(d), filepath.Join(s.tmp(), "damaged-"+d.Hex()))
		return fmt.Errorf("read blob %s: content has sha256:%s: %w", d, got, ErrDamaged)
	}
	return nil
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
