// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// binaryNote remembers which file was copied, so that an unchanged one is not read again. It may be lost at any time: then
// both files are hashed. It is worth nothing after a reboot, for the copy is not synced to the disk.
type binaryNote struct {
	Digest       string // of both
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
	boot, err := bootID()
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
	note = binaryNote{Source: src, Boot: boot}
	if existed {
		if same, digest, err := sameContent(s.Binary, own); err != nil {
			return false, err
		} else if same {
			note.Digest, note.Copy = digest, cur
			return false, writeNote(notePath, note)
		}
	}
	if note.Digest, err = copyExecutable(s.Binary, own); err != nil {
		return false, fmt.Errorf("copy slipway into machine: %w", err)
	}
	if note.Copy, err = keyOf(own); err != nil {
		return false, err
	}
	return existed, writeNote(notePath, note)
}

// copyExecutable replaces dst at once. A machine that runs the old one keeps it until its process ends.
func copyExecutable(src, dst string) (digest string, err error) {
	in, err := os.Open(src)
	if err != nil {
		return "", err
	}
	defer in.Close()
	tmp := dst + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	out, err := os.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	_, err = io.CopyBuffer(io.MultiWriter(out, sum), struct{ io.Reader }{in}, make([]byte, 1<<20))
	if err := errors.Join(err, out.Chmod(0o755), out.Close()); err != nil {
		return "", errors.Join(err, os.Remove(tmp))
	}
	return hex.EncodeToString(sum.Sum(nil)), os.Rename(tmp, dst)
}

func sameContent(a, b string) (same bool, digest string, err error) {
	da, err := digestOf(a)
	if err != nil {
		return false, "", err
	}
	db, err := digestOf(b)
	return err == nil && da == db, da, err
}

func digestOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("hash executable: %w", err)
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", fmt.Errorf("hash executable: %w", err)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
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
