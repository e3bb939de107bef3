// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
)

// gather returns the facts for units. It omits serial numbers.
func (f File) gather(sys string) (map[string]string, error) {
	out := map[string]string{}
	set := func(name, value string) {
		if value = oneWord(value); value != "" {
			out[name] = value
		}
	}
	links, err := netlink.LinkList()
	if err != nil {
		return nil, err
	}
	for _, link := range links {
		all, err := global(link)
		if err != nil {
			return nil, err
		}
		if len(all) > 0 {
			set(factName(link.Attrs().Name)+"_IPV4", all[0].String())
		}
	}
	if route, err := defaultRoute(); err != nil {
		return nil, err
	} else if route != nil {
		if addr, err := address(route); err != nil {
			return nil, err
		} else if addr.IsValid() {
			set("DEFAULT_IPV4", addr.String())
		}
	}
	if name, err := os.Hostname(); err == nil {
		set("HOSTNAME", name)
	}
	if zone, err := os.ReadFile(f.Zone); err == nil {
		set("ZONE", string(zone))
	}
	disks(sys, set)
	for _, id := range []string{"sys_vendor", "product_name", "product_version", "board_name", "bios_vendor", "chassis_asset_tag"} {
		if text, err := os.ReadFile(filepath.Join(sys, "class/dmi/id", id)); err == nil {
			set("DMI_"+factName(id), string(text))
		}
	}
	productUUID, machineID := identity("/")
	set("PRODUCT_UUID", productUUID)
	set("MACHINE_ID", machineID)
	return out, nil
}

// disks sets the names and sizes of the block devices that are backed by a device, which excludes loop devices, RAM disks and
// partitions.
func disks(sys string, set func(name, value string)) {
	found, err := filepath.Glob(filepath.Join(sys, "block/*/device"))
	if err != nil {
		return
	}
	var names []string
	for _, path := range found {
		name := filepath.Base(filepath.Dir(path))
		text, err := os.ReadFile(filepath.Join(sys, "block", name, "size"))
		if err != nil {
			continue
		}
		sectors, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
		if err != nil || sectors == 0 { // a drive without a medium
			continue
		}
		names = append(names, name)
		set("DISK_"+factName(name)+"_BYTES", strconv.FormatUint(sectors*512, 10))
	}
	set("DISKS", strings.Join(names, ","))
}

// factName turns a name into the name of a variable: upper case, with underscores for other characters.
func factName(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z':
			return r - 'a' + 'A'
		case 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
			return r
		}
		return '_'
	}, s)
}

// oneWord replaces spaces, quotes and control characters, so that every reader of environment files reads the same value.
func oneWord(s string) string {
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' || strings.ContainsRune("\"'\\$`#;", r) {
			return '_'
		}
		return r
	}, strings.TrimSpace(s))
}
