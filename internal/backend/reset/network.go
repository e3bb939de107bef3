// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/core/roster"
)

// removeRoutes removes the agent's routes to the pods of other nodes.
func removeRoutes() error {
	filter := &netlink.Route{Protocol: roster.RouteProtocol}
	list, err := netlink.RouteListFiltered(netlink.FAMILY_V4, filter, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	var errs []error
	for _, r := range list {
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("remove route %s: %w", r.Dst, err))
		}
	}
	return errors.Join(errs...)
}

// removeNetwork removes the pods' networks and bridge, the agent's routes, and the nftables tables of
// slipway, kube-proxy and the portmap plugin.
func removeNetwork(ctx context.Context) error {
	var errs []error
	errs = append(errs, removePodNetworks(cniResults), removeBridge(), removeRoutes())
	nft, err := exec.LookPath("nft")
	if err != nil {
		return errors.Join(errs...) // without nft there are no tables
	}
	list, err := exec.CommandContext(ctx, nft, "list", "tables").Output()
	if err != nil {
		return errors.Join(append(errs, fmt.Errorf("list nftables: %w", err))...)
	}
	for line := range strings.Lines(string(list)) {
		f := strings.Fields(line) // table ip kube-proxy
		if len(f) != 3 || f[2] != "slipway" && f[2] != "kube-proxy" && !strings.HasPrefix(f[2], "cni_hostport") {
			continue
		}
		if out, err := exec.CommandContext(ctx, nft, "delete", "table", f[1], f[2]).CombinedOutput(); err != nil {
			errs = append(errs, fmt.Errorf("delete table %s %s: %w: %s", f[1], f[2], err, out))
		}
	}
	return errors.Join(errs...)
}

// unmountBelow unmounts everything mounted by units below dirs, in reverse order, but not dirs themselves.
func unmountBelow(dirs []string) error {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var points []string
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 4 {
			points = append(points, strings.NewReplacer(`\040`, " ", `\011`, "\t", `\134`, `\`).Replace(f[4]))
		}
	}
	var errs []error
	for i := len(points) - 1; i >= 0; i-- {
		for _, dir := range dirs {
			if !strings.HasPrefix(points[i], dir+"/") {
				continue
			}
			if err := unix.Unmount(points[i], unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
				errs = append(errs, fmt.Errorf("unmount %s: %w", points[i], err))
			}
			break
		}
	}
	return errors.Join(errs...)
}

const (
	bridge = "cni0"
	// cniResults is the directory in which containerd's CNI library records the network of each pod.
	cniResults = "/var/lib/cni/results"
)

// removeBridge removes the pods' bridge and its ports, which would survive the bridge.
func removeBridge() error {
	link, err := netlink.LinkByName(bridge)
	if err != nil {
		return nil //nolint:nilerr // there is no bridge
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

// removePodNetworks removes the network namespaces of pods, as recorded by the CNI library.
func removePodNetworks(results string) error {
	records, err := os.ReadDir(results)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, record := range records {
		text, err := os.ReadFile(filepath.Join(results, record.Name()))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		var made struct {
			NetNS string `json:"netns"`
		}
		if json.Unmarshal(text, &made) != nil {
			continue // partially written
		}
		path := strings.TrimPrefix(filepath.Clean(made.NetNS), "/var") // /var/run is /run
		if filepath.Dir(path) != "/run/netns" {
			continue // not a pod's namespace
		}
		if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", path, err))
			continue
		}
		errs = append(errs, removeFile(path))
	}
	return errors.Join(errs...)
}
