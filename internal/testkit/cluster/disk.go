// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// copyLocked gives the machine a new disk with a copy of the old one. It repeats a copy during which something was
// written, so that the new disk has the content of the old one at one moment.
func (m *machine) copyLocked() {
	m.copies++
	next := filepath.Join(m.w.dir, m.name, fmt.Sprint(m.copies))
	for range 1000 {
		before := fingerprint(m.root)
		if err := copyTree(m.root, next); err == nil && fingerprint(m.root) == before {
			break
		}
		os.RemoveAll(next)
	}
	m.root = next
}

// fingerprint changes whenever a file below root does: files are replaced, never written in place.
func fingerprint(root string) string {
	var b strings.Builder
	_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			b.WriteString("?")
			return nil //nolint:nilerr // a file that is removed meanwhile changes the fingerprint
		}
		if info, err := d.Info(); err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok && !d.IsDir() {
				fmt.Fprintf(&b, "%s %d %d %d\n", path, st.Ino, st.Size, st.Mtim.Nano())
			}
		}
		return nil
	})
	return b.String()
}

func copyTree(from, to string) error {
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(from)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		a, b := filepath.Join(from, e.Name()), filepath.Join(to, e.Name())
		if e.IsDir() {
			if err := copyTree(a, b); err != nil {
				return err
			}
			continue
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		data, err := os.ReadFile(a)
		if err != nil {
			return err
		}
		if err := os.WriteFile(b, data, info.Mode().Perm()); err != nil {
			return err
		}
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// credentials lists the files that give a machine an identity in a cluster.
func credentials(root string) (found []string) {
	_ = filepath.WalkDir(root+"/etc/kubernetes", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			found = append(found, strings.TrimPrefix(path, root))
		}
		return nil
	})
	return found
}
