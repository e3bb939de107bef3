// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/machine/process"
)

// copyRecord identifies the file that was copied, so that an unchanged one is not read again. If it is lost,
// both files are compared. It is not valid after a reboot, because the copy is not synced to the disk.
type copyRecord struct {
	Source, Copy fileKey
	Boot         string
}

// fileKey changes whenever the file's content may have changed.
type fileKey struct {
	Dev, Inode   uint64
	Size         int64
	Mtime, Ctime int64
}

// ensureBinary copies the host's slipway executable into the machine, and reports whether it replaced a
// different one.
func (l *Local) ensureBinary(s Spec) (replaced bool, err error) {
	f := l.paths(s.Cluster, s.Name)
	own, recordPath := filepath.Join(f.bin(), "slipway"), filepath.Join(f.dir, "binary.json")
	boot, err := process.BootID()
	if err != nil {
		return false, err
	}
	src, err := keyOf(s.Binary)
	if err != nil {
		return false, fmt.Errorf("inspect slipway executable: %w", err)
	}
	cur, err := keyOf(own)
	existed := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("inspect machine's slipway: %w", err)
	}
	r := readCopyRecord(recordPath)
	if existed && r.Boot == boot && r.Source == src && r.Copy == cur {
		return false, nil
	}
	r = copyRecord{Source: src, Copy: cur, Boot: boot}
	if existed {
		if same, err := sameContent(s.Binary, own); err != nil {
			return false, fmt.Errorf("compare machine's slipway: %w", err)
		} else if same {
			return false, writeCopyRecord(recordPath, r)
		}
	}
	if err := copyExecutable(s.Binary, own); err != nil {
		return false, fmt.Errorf("copy slipway into machine: %w", err)
	}
	if r.Copy, err = keyOf(own); err != nil {
		return false, err
	}
	if r.Copy.Size != src.Size {
		return false, fmt.Errorf("copy slipway into machine: %s changed during the copy: try again", s.Binary)
	}
	return existed, writeCopyRecord(recordPath, r)
}

// copyExecutable replaces dst atomically. Processes that run the old file keep it.
func copyExecutable(src, dst string) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	tmp := dst + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	out, err := os.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	// By hand: copy_file_range is slower on filesystems that do not share blocks.
	_, err = io.CopyBuffer(struct{ io.Writer }{out}, struct{ io.Reader }{in}, make([]byte, 1<<20))
	if err := errors.Join(err, out.Chmod(0o755), out.Close()); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return os.Rename(tmp, dst)
}

// sameContent compares two files.
func sameContent(a, b string) (bool, error) {
	fa, err := os.Open(a)
	if err != nil {
		return false, err
	}
	defer fa.Close()
	fb, err := os.Open(b)
	if err != nil {
		return false, err
	}
	defer fb.Close()
	pa, pb := make([]byte, 1<<20), make([]byte, 1<<20)
	for {
		na, ea := io.ReadFull(fa, pa)
		nb, eb := io.ReadFull(fb, pb)
		if !bytes.Equal(pa[:na], pb[:nb]) {
			return false, nil
		}
		if ea != nil || eb != nil {
			for _, err := range []error{ea, eb} {
				if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
					return false, err
				}
			}
			return ea != nil && eb != nil, nil
		}
	}
}

// keyOf returns the key of a regular file.
func keyOf(path string) (fileKey, error) {
	info, err := os.Stat(path)
	if err != nil {
		return fileKey{}, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() {
		return fileKey{}, fmt.Errorf("%s is not a regular file", path)
	}
	return fileKey{uint64(st.Dev), st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano()}, nil
}

// readCopyRecord returns the zero value if there is no valid record.
func readCopyRecord(path string) copyRecord {
	var r copyRecord
	if data, err := os.ReadFile(path); err != nil || json.Unmarshal(data, &r) != nil {
		return copyRecord{}
	}
	return r
}

// writeCopyRecord replaces the record atomically, without syncing it.
func writeCopyRecord(path string, r copyRecord) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := errors.Join(os.WriteFile(path+".new", data, 0o600), os.Rename(path+".new", path)); err != nil {
		return fmt.Errorf("record machine's slipway: %w", err)
	}
	return nil
}

// writeFiles writes s.Files to a machine that has never booted. In case of doubt it has: its files belong to it.
func (l *Local) writeFiles(s Spec, old record) error {
	f := l.paths(s.Cluster, s.Name)
	_, err := os.Lstat(f.console()) // created just before the first boot
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("check whether machine %s has booted: %w", s.Name, err)
	}
	if err == nil || !old.Since.IsZero() {
		return nil
	}
	root := f.data("slipway")
	for _, p := range slices.Sorted(maps.Keys(s.Files)) {
		at := filepath.Join(root, p)
		if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
			return fmt.Errorf("write files of machine %s: %w", s.Name, err)
		}
		if err := durable.WriteFile(at, 0o600, s.Files[p]); err != nil {
			return fmt.Errorf("write files of machine %s: %w", s.Name, err)
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
