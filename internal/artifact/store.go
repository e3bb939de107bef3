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
	"syscall"

	"github.com/slipway-project/slipway/internal/durable"
)

// Store keeps files by their hash. It is safe for concurrent use, also by several processes: a blob appears
// complete or not at all.
type Store struct {
	root string // absolute
}

// Open returns the store at root and creates its directories if necessary.
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

// Path is the location of the blob, whether it exists or not. A caller that reads it directly skips the check
// of Take.
func (s *Store) Path(d Digest) string { return filepath.Join(s.blobs(), d.Hex()) }

// Add copies r into the store. It replaces an existing blob, which repairs a damaged one.
func (s *Store) Add(ctx context.Context, r io.Reader) (Blob, error) {
	return s.add(ctx, r, nil)
}

// add returns ErrDamaged and stores nothing if the content does not match want.
func (s *Store) add(ctx context.Context, r io.Reader, want *Blob) (Blob, error) {
	f, err := os.CreateTemp(s.tmp(), "add-*")
	if err != nil {
		return Blob{}, fmt.Errorf("add blob: %w", err)
	}
	defer os.Remove(f.Name()) // a no-op after the rename
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

// AddFile adds the content of a file.
func (s *Store) AddFile(ctx context.Context, path string) (Blob, error) {
	f, err := os.Open(path)
	if err != nil {
		return Blob{}, fmt.Errorf("add blob: %w", err)
	}
	defer f.Close()
	return s.Add(ctx, f)
}

// Verify reads the whole blob. The error is ErrDamaged if its content does not match the digest, and
// fs.ErrNotExist if the blob does not exist. It moves a damaged blob away, so that the next Build makes it
// again.
func (s *Store) Verify(ctx context.Context, d Digest) error {
	return s.copyTo(ctx, d, io.Discard)
}

// Take copies a blob to dst and checks its hash, with the errors of Verify. The directory of dst must exist.
// On error dst is unchanged. Processes that run the old file keep it.
func (s *Store) Take(ctx context.Context, d Digest, dst string, mode fs.FileMode) error {
	if err := s.take(ctx, d, dst, mode); err != nil {
		return fmt.Errorf("take %s: %w", filepath.Base(dst), err)
	}
	return nil
}

// take is Take without context in its errors.
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

// copyTo writes a blob to w and checks its hash afterwards: on error, the caller must discard what it has
// received.
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
		// Keep it in tmp for inspection; a later build removes it.
		_ = os.Rename(s.Path(d), filepath.Join(s.tmp(), "damaged-"+d.Hex()))
		return fmt.Errorf("read blob %s: content has sha256:%s: %w", d, got, ErrDamaged)
	}
	return nil
}

// reader returns the context's error once ctx is done, so that copying a large file can be cancelled.
type reader struct {
	ctx context.Context //nolint:containedctx // io.Reader has no context parameter
	r   io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// key identifies a build: the hash, in hex, of everything that determines its output.
type key string

const recordSchema = 1

// record describes the result of a build. Repeating the build gives the same result, so a record never
// becomes outdated.
type record struct {
	Key   key             `json:"key"`   // equals the file name: detects a record that was copied over another
	About string          `json:"about"` // for humans: "etcd 3.6.16, go1.26.8 amd64"
	Files map[string]Blob `json:"files"`
}

func (s *Store) recordPath(k key) string { return filepath.Join(s.records(), string(k)) }

// loadRecord returns the files of an earlier build; ok is false if there is no record. A record that cannot
// be read is an error.
func (s *Store) loadRecord(k key) (files map[string]Blob, ok bool, err error) {
	var r record
	err = durable.Load(s.recordPath(k), recordSchema, &r)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	if r.Key != k {
		return nil, false, fmt.Errorf("load record %s: belongs to %s: %w", k, r.About, ErrDamaged)
	}
	for name, b := range r.Files {
		if _, err := ParseDigest(b.Digest.String()); err != nil {
			return nil, false, fmt.Errorf("load record %s: %s: %w", k, name, err)
		}
	}
	return r.Files, true, nil
}

// saveRecord writes a record. The blobs must be in the store.
func (s *Store) saveRecord(k key, about string, files map[string]Blob) error {
	return durable.Save(s.recordPath(k), recordSchema, record{Key: k, About: about, Files: files})
}

// lock excludes other builders, in this process and in others. While it waits, it calls waiting with what the
// holder does. Readers need no lock.
func (s *Store) lock(ctx context.Context, about string, waiting func(holder string)) (unlock func(), err error) {
	note := fmt.Sprintf("process %d: %s", os.Getpid(), about)
	unlock, err = durable.LockFile(ctx, filepath.Join(s.root, "lock"), note, waiting)
	if err != nil {
		return nil, fmt.Errorf("lock store: %w", err)
	}
	return unlock, nil
}

// verifiedPath is where the store records a blob's file metadata (inode, size and times) at the time its hash
// was last verified. Any write to the file changes the metadata, so while they match, the blob need not be
// read again. This does not detect corruption on the disk, but Take does.
func (s *Store) verifiedPath(d Digest) string { return filepath.Join(s.root, "verified", d.Hex()) }

// Sound reports whether a blob exists with the right content. It reads the blob only if the file has changed
// since it was last verified.
func (s *Store) Sound(ctx context.Context, b Blob) bool {
	now, ok := s.metadata(b)
	if !ok {
		return false
	}
	if verified, err := os.ReadFile(s.verifiedPath(b.Digest)); err == nil && string(verified) == now {
		return true
	}
	if s.Verify(ctx, b.Digest) != nil {
		return false
	}
	s.recordVerified(b.Digest, now)
	return true
}

// metadata is the text stored at verifiedPath; ok is false if the blob does not exist or has the wrong size.
func (s *Store) metadata(b Blob) (text string, ok bool) {
	info, err := os.Lstat(s.Path(b.Digest))
	if err != nil || !info.Mode().IsRegular() || info.Size() != b.Size {
		return "", false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", false
	}
	return fmt.Sprintf("%d %d %d.%09d %d.%09d\n", st.Ino, st.Size, st.Mtim.Sec, st.Mtim.Nsec, st.Ctim.Sec, st.Ctim.Nsec), true
}

// recordVerified ignores errors: without the record, the blob is read again.
func (s *Store) recordVerified(d Digest, metadata string) {
	path := s.verifiedPath(d)
	if os.MkdirAll(filepath.Dir(path), 0o700) != nil {
		return
	}
	if os.WriteFile(path+".new", []byte(metadata), 0o600) == nil {
		_ = os.Rename(path+".new", path)
	}
}

// GC removes every blob that belongs to none of the bundles in keep, and returns the number of bytes freed.
// It keeps records: they are small, and a build whose blobs are missing counts as not done. An empty keep is
// an error, because it is more likely a bug than an intention.
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
	unlock, err := s.lock(ctx, "removing unused files", func(string) {})
	if err != nil {
		return 0, err
	}
	defer unlock()
	s.cleanTmp()
	entries, err := os.ReadDir(s.blobs())
	if err != nil {
		return 0, fmt.Errorf("collect garbage: %w", err)
	}
	for _, e := range entries {
		d, err := ParseDigest("sha256:" + e.Name())
		if err != nil || kept[d] {
			continue // not a blob, or in use
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
