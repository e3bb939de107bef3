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

// observeDir lets a symlink to a folder count as the folder: administrators move data to other disks that way.
func observeDir(d plan.Dir) (plan.State, error) {
	info, err := os.Stat(d.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return absent(), nil
	}
	if err != nil {
		return plan.State{}, err
	}
	if !info.IsDir() {
		return wrong("it is " + typeName(info.Mode()) + ", want a folder"), nil
	}
	uid, gid, err := owner(d)
	if err != nil {
		return plan.State{}, fmt.Errorf("observe folder %s: %w", d.Path, err)
	}
	if details := driftFrom(info, fs.FileMode(d.Mode).Perm(), uid, gid); len(details) > 0 {
		return wrong(strings.Join(details, "; ")), nil
	}
	return right(), nil
}

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
		return fmt.Errorf("make folder %s: it is %s; remove it by hand", d.Path, typeName(info.Mode()))
	}
	uid, gid, err := owner(d)
	if err != nil {
		return fmt.Errorf("make folder %s: %w", d.Path, err)
	}
	return errors.Join(os.Chown(d.Path, uid, gid), os.Chmod(d.Path, mode)) // chmod last: chown may drop bits
}

// owner of a folder: the agent's user, and any group, unless the folder says otherwise. Accounts are looked up each time, for others
// of the plan make them.
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

// remove takes away what an earlier plan made. What is gone already is fine; what has become something else is refused.
func remove(item plan.Item) error {
	switch it := item.(type) {
	case plan.Dir:
		return removeDir(it.Path)
	case plan.File:
		if data, err := os.ReadFile(it.Path); it.UserOwned && err == nil && string(data) != it.Content {
			return nil // somebody has changed it: it is theirs
		}
		return removeFile(it.Path)
	case plan.Kubeconfig:
		return removeFile(it.Path)
	case plan.StaticPod: // by the host, who knows its pod
		return nil
	case plan.Artifact:
		return removeLink(it.Path)
	case plan.Mount:
		return unmount(it.Target)
	case plan.Cert:
		return removeCert(it.Want)
	case plan.Precondition: // nothing was made
		return nil
	}
	return fmt.Errorf("remove %s: not a kind of file", plan.RefOf(item))
}

// removeDir leaves a folder that holds something, which is somebody's data, and one that something is mounted on.
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

func removeLink(path string) error {
	return removeIf(path, "a symlink", func(m fs.FileMode) bool { return m&fs.ModeSymlink != 0 })
}

func removeIf(path, want string, is func(fs.FileMode) bool) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !is(info.Mode()) {
		return fmt.Errorf("remove %s: it is %s and was made as %s; remove it by hand", path, typeName(info.Mode()), want)
	}
	return os.Remove(path)
}

// removeCert leaves the files of a CA: everything it signed hangs on them, and nothing brings them back.
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
