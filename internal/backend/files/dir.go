// SPDX-License-Identifier: Apache-2.0

package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"

	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/plan"
)

// observeDir accepts a symlink to a directory, because administrators use them to move data to another
// disk.
func observeDir(d plan.Dir) (plan.State, error) {
	info, err := os.Stat(d.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return absent(), nil
	}
	if err != nil {
		return plan.State{}, err
	}
	if !info.IsDir() {
		return wrong("it is " + typeName(info.Mode()) + ", want a directory"), nil
	}
	uid, gid, err := owner(d)
	if err != nil {
		return plan.State{}, fmt.Errorf("observe directory %s: %w", d.Path, err)
	}
	if details := drift(info, fs.FileMode(d.Mode).Perm(), uid, gid); len(details) > 0 {
		return wrong(strings.Join(details, "; ")), nil
	}
	return right(), nil
}

// makeDir creates a directory or corrects its mode and owner. It refuses to replace anything else.
func makeDir(d plan.Dir) error {
	if err := makeParent(d.Path); err != nil {
		return err
	}
	mode := fs.FileMode(d.Mode).Perm()
	if err := os.Mkdir(d.Path, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Stat(d.Path)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("make directory %s: it is %s; remove it manually", d.Path, typeName(info.Mode()))
	}
	uid, gid, err := owner(d)
	if err != nil {
		return fmt.Errorf("make directory %s: %w", d.Path, err)
	}
	return errors.Join(os.Chown(d.Path, uid, gid), os.Chmod(d.Path, mode)) // chmod last because chown may clear bits
}

// owner returns the wanted owner of a directory: by default the agent's user and any group (-1). Accounts
// are looked up each time because other items of the plan create them.
func owner(d plan.Dir) (uid, gid int, err error) {
	uid, gid = os.Geteuid(), -1
	if d.Owner != "" {
		u, err := user.Lookup(d.Owner)
		if err != nil {
			return 0, 0, err
		}
		if uid, err = strconv.Atoi(u.Uid); err != nil {
			return 0, 0, err
		}
	}
	if d.Group != "" {
		g, err := user.LookupGroup(d.Group)
		if err != nil {
			return 0, 0, err
		}
		if gid, err = strconv.Atoi(g.Gid); err != nil {
			return 0, 0, err
		}
	}
	return uid, gid, nil
}

// remove removes what an earlier plan made. It returns nil if the item is already gone, and an error if it
// has been replaced by something else.
func remove(item plan.Item) error {
	switch it := item.(type) {
	case plan.Dir:
		return removeDir(it.Path)
	case plan.File:
		if data, err := os.ReadFile(it.Path); it.UserOwned && err == nil && string(data) != it.Content {
			return nil // changed by the user: it belongs to them
		}
		return removeFile(it.Path)
	case plan.Kubeconfig:
		return removeFile(it.Path)
	case plan.StaticPod: // see removeStaticPod
		return nil
	case plan.Artifact:
		return removeIf(it.Path, "a symlink", func(m fs.FileMode) bool { return m&fs.ModeSymlink != 0 })
	case plan.Mount:
		return unmount(it.Target)
	case plan.Cert:
		return removeCert(it.Want)
	case plan.Precondition: // nothing was made
		return nil
	}
	return fmt.Errorf("remove %s: not handled by package files", plan.RefOf(item))
}

// removeDir removes a directory unless it is not empty, which means that it contains other data, or is a
// mount point.
func removeDir(path string) error {
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) || len(entries) > 0 {
		return nil
	}
	if err != nil {
		return err
	}
	if err := os.Remove(path); !errors.Is(err, syscall.EBUSY) {
		return err
	}
	return nil
}

func removeFile(path string) error {
	return removeIf(path, "a file", func(m fs.FileMode) bool { return m.IsRegular() })
}

// removeIf removes a file if it has the wanted type. It returns nil if there is no file.
func removeIf(path, want string, is func(fs.FileMode) bool) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !is(info.Mode()) {
		return fmt.Errorf("remove %s: it is %s, want %s; remove it manually", path, typeName(info.Mode()), want)
	}
	return os.Remove(path)
}

// removeCert keeps the files of a CA: everything it has signed depends on them, and they cannot be made
// again.
func removeCert(w pki.Want) error {
	if w.Kind == pki.CA {
		return nil
	}
	var errs []error
	for _, path := range []string{w.CertPath, w.KeyPath} {
		if path != "" {
			errs = append(errs, removeFile(path))
		}
	}
	return errors.Join(errs...)
}
