// SPDX-License-Identifier: Apache-2.0

// Package durable writes files that survive a power cut: a reader sees the old content or the new, never a
// mixture. [WriteFile] replaces one file. [Save] and [Load] store a record: a value with a schema number and
// a checksum, and its previous generation next to it (path + ".prev"). A damaged record is recovered from
// there or reported as damaged, but never treated as missing. [LockFile] and its variants exclude concurrent
// writers. The package never deletes a record and never creates a directory. Read [Save] and [Load] first.
//
//	durable.Save("/var/lib/slipway/state/lock", 1, lock)
//	err := durable.Load("/var/lib/slipway/state/lock", 1, &lock)
//	errors.Is(err, fs.ErrNotExist)     // it never existed
//	errors.Is(err, durable.ErrDamaged) // it existed: do not start from scratch
package durable

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
	"strings"
)

// WriteFile replaces path by a regular file with this content and mode. It does not follow a symlink at path,
// but replaces it. When it returns nil, the content is on the disk. The file has its mode from the moment it
// exists.
func WriteFile(path string, mode os.FileMode, data []byte) error {
	tmp, err := writeTemp(path, mode, data)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(tmp))
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir makes changes of a directory durable: files created, renamed or removed in it.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	return nil
}

// writeTemp writes and syncs a file next to path. Its name starts with a dot and has an extension that
// programs that read whole configuration directories (kubelet, CNI) ignore.
func writeTemp(path string, mode os.FileMode, data []byte) (name string, err error) {
	f, err := createTemp(path, mode)
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	if _, err := f.Write(data); err != nil {
		return "", errors.Join(err, f.Close())
	}
	if err := errors.Join(f.Chmod(mode), f.Sync(), f.Close()); err != nil { // the umask may have cleared bits
		return "", err
	}
	return f.Name(), nil
}

// createTemp creates a new file next to path, even if earlier ones are left over.
func createTemp(path string, mode os.FileMode) (*os.File, error) {
	dir, base := filepath.Split(path)
	for try := 0; ; try++ {
		name := fmt.Sprintf("%s.%s.%d-%d.tmp", dir, base, os.Getpid(), try)
		f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
		if !errors.Is(err, os.ErrExist) || try > 1000 {
			return f, err
		}
	}
}

// RemoveTempFiles removes the temporary files that interrupted writes of these paths have left, because they
// may contain secrets. The paths must not be written concurrently. It skips empty paths.
func RemoveTempFiles(paths ...string) error {
	for _, path := range paths {
		if path == "" {
			continue
		}
		dir, base := filepath.Split(path)
		literal := strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(dir + "." + base)
		old, err := filepath.Glob(literal + ".[0-9]*-[0-9]*.tmp")
		if err != nil {
			return fmt.Errorf("find temporary files of %s: %w", path, err)
		}
		for _, name := range old {
			if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove temporary file: %w", err)
			}
		}
	}
	return nil
}

// readAll is os.ReadFile with a size limit, so that a damaged file cannot exhaust the memory.
func readAll(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxRecord+1))
	return data, errors.Join(err, f.Close())
}

// Digest reads r to the end and returns "sha256:" with 64 hex digits, and the size. It stops with an error
// when ctx ends.
func Digest(ctx context.Context, r io.Reader) (digest string, size int64, err error) {
	sum, buf := sha256.New(), make([]byte, 1<<20)
	for {
		if err := ctx.Err(); err != nil {
			return "", 0, err
		}
		n, err := r.Read(buf)
		sum.Write(buf[:n])
		size += int64(n)
		if errors.Is(err, io.EOF) {
			return "sha256:" + hex.EncodeToString(sum.Sum(nil)), size, nil
		}
		if err != nil {
			return "", 0, err
		}
	}
}
