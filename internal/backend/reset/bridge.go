// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	bridge = "cni0"
	// cniResults is where the CNI library of containerd notes each network that it has given to a pod.
	cniResults = "/var/lib/cni/results"
)

// removeBridge takes away the pods' bridge and what is plugged into it: a bridge that goes leaves its ports behind.
func removeBridge() error {
	link, err := netlink.LinkByName(bridge)
	if err != nil {
		return nil //nolint:nilerr // there is none
	}
	all, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	var errs []error
	for _, port := range append(all, link) {
		if a := port.Attrs(); a.MasterIndex != link.Attrs().Index && a.Index != link.Attrs().Index {
			continue
		}
		var missing netlink.LinkNotFoundError
		if err := netlink.LinkDel(port); err != nil && !errors.As(err, &missing) && !errors.Is(err, unix.ENODEV) {
			errs = append(errs, fmt.Errorf("remove link %s: %w", port.Attrs().Name, err))
		}
	}
	return errors.Join(errs...)
}

// removePodNetworks removes the namespaces of networks that pods have had, by the notes of who made them.
func removePodNetworks(results string) error {
	notes, err := os.ReadDir(results)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, note := range notes {
		text, err := os.ReadFile(filepath.Join(results, note.Name()))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		var made struct {
			NetNS string `json:"netns"`
		}
		if json.Unmarshal(text, &made) != nil {
			continue // half written: it names nothing
		}
		path := strings.TrimPrefix(filepath.Clean(made.NetNS), "/var") // /var/run is /run
		if filepath.Dir(path) != "/run/netns" {
			continue // that of the machine itself
		}
		if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", path, err))
			continue
		}
		errs = append(errs, gone(path))
	}
	return errors.Join(errs...)
}
