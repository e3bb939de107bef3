// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/slipway-project/slipway/internal/machine/process"
)

// binaryNote remembers which file was copied, so that an unchanged one is not read again. It may be lost at any time: then
// both files are compared. It is worth nothing after a reboot, for the copy is not synced to the disk.
type binaryNote struct {
	Source, Copy fileKey
	Boot         string
}

// fileKey changes whenever the file's content may have changed.
type fileKey struct {
	Dev, Inode   uint64
	Size         int64
	Mtime, Ctime int64
}

// ensureBinary makes the machine's slipway the same as the host's, and tells whether it was another one before.
func (l *Local) ensureBinary(s Spec) (replaced bool, err error) {
	f := l.folders(s.Cluster, s.Name)
	own, notePath := filepath.Join(f.bin(), "slipway"), filepath.Join(f.dir, "binary.json")
	boot, err := process.BootID()
	if err != nil {
		return false, err
	}
	src, err := keyOf(s.Binary)
	if err != nil {
		return false, fmt.Errorf("look at slipway executable: %w", err)
	}
	cur, err := keyOf(own)
	existed := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("look at machine's slipway: %w", err)
	}
	note := readNote(notePath)
	if existed && note.Boot == boot && note.Source == src && note.Copy == cur {
		return false, nil
	}
	note = binaryNote{Source: src, Copy: cur, Boot: boot}
	if existed {
		if same, err := sameContent(s.Binary, own); err != nil {
			return false, fmt.Errorf("compare machine's slipway: %w", err)
		} else if same {
			return false, writeNote(notePath, note)
		}
	}
	if err := copyExecutable(s.Binary, own); err != nil {
		return false, fmt.Errorf("copy slipway into machine: %w", err)
	}
	if note.Copy, err = keyOf(own); err != nil {
		return false, err
	}
	if note.Copy.Size != src.Size {
		return false, fmt.Errorf("copy slipway into machine: %s changed meanwhile; try again", s.Binary)
	}
	return existed, writeNote(notePath, note)
}

// copyExecutable replaces dst at once. A machine that runs the old one keeps it until its process ends.
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
			return ended(ea) && ended(eb), errors.Join(unlessEnded(ea), unlessEnded(eb))
		}
	}
}

func ended(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }

func unlessEnded(err error) error {
	if ended(err) {
		return nil
	}
	return err
}

func keyOf(path string) (fileKey, error) {
	info, err := os.Stat(path)
	if err != nil {
		return fileKey{}, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() {
		return fileKey{}, fmt.Errorf("%s is no regular file", path)
	}
	return fileKey{uint64(st.Dev), st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano()}, nil
}

func readNote(path string) binaryNote {
	var n binaryNote
	if data, err := os.ReadFile(path); err != nil || json.Unmarshal(data, &n) != nil {
		return binaryNote{}
	}
	return n
}

func writeNote(path string, n binaryNote) error {
	data, err := json.Marshal(n)
	if err != nil {
		return err
	}
	if err := errors.Join(os.WriteFile(path+".new", data, 0o600), os.Rename(path+".new", path)); err != nil {
		return fmt.Errorf("note machine's slipway: %w", err)
	}
	return nil
}
