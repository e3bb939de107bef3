// SPDX-License-Identifier: Apache-2.0

// Package durable writes files that survive a power cut: a reader sees the old content or the new, never a mixture.
// [WriteFile] replaces one file. [Save] and [Load] keep a record: a value with schema and checksum, and its previous
// generation beside it (path + ".prev"), so that a damaged record is recovered or refused and never taken for a fresh one.
// [LockFile] and its kin keep processes apart that write the same files. The package never deletes a record and never creates a
// folder. Read [Save] and [Load] first.
//
//	durable.Save("/var/lib/slipway/state/lock", 1, lock)
//	err := durable.Load("/var/lib/slipway/state/lock", 1, &lock)
//	errors.Is(err, fs.ErrNotExist)     // there never was one
//	errors.Is(err, durable.ErrDamaged) // there was one: do not start afresh
package durable

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// WriteFile replaces path with a regular file of this content and mode. What stood at path, a symlink too, is replaced and
// not followed. When it returns nil, the content is on the disk. The file has its final mode from the moment it exists.
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

// SyncDir makes the names in a folder durable: what was created, renamed or removed in it.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync folder: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync folder %s: %w", dir, err)
	}
	return nil
}

// writeTemp writes and syncs a file beside path. Its name starts with a dot and has an ending that no reader of
// configuration folders (kubelet, CNI) takes for one of its own.
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
	if err := errors.Join(f.Chmod(mode), f.Sync(), f.Close()); err != nil { // the umask may have taken bits away
		return "", err
	}
	return f.Name(), nil
}

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

// RemoveDebris takes away what a cut has left beside these paths: temporary files, which may hold what the files were to hold.
// Nobody may be writing the paths meanwhile. Empty paths are skipped.
func RemoveDebris(paths ...string) error {
	for _, path := range paths {
		if path == "" {
			continue
		}
		dir, base := filepath.Split(path)
		literal := strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(dir + "." + base)
		old, err := filepath.Glob(literal + ".[0-9]*-[0-9]*.tmp")
		if err != nil {
			return fmt.Errorf("look for temporary files of %s: %w", path, err)
		}
		for _, name := range old {
			if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove temporary file: %w", err)
			}
		}
	}
	return nil
}

// readAll is os.ReadFile with a bound: a record is small, and a damaged disk must not fill the memory.
func readAll(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxRecord+1))
	return data, errors.Join(err, f.Close())
}
