// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestFind(t *testing.T) {
	t.Parallel()
	f, err := Find()
	if err != nil {
		t.Fatal(err)
	}
	if route, err := defaultRoute(); err != nil || route != nil && f.MTU < 68 {
		t.Errorf("got MTU %d and error %v, want the MTU of the default route", f.MTU, err)
	}
	if !f.Address.IsValid() {
		return // this machine has no unambiguous address
	}
	if f.Address.IsLoopback() || !f.Address.Is4() {
		t.Errorf("got address %s, want an IPv4 address beyond loopback", f.Address)
	}
}

func TestIdentity(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if uuid, id := identity(root); uuid != "" || id != "" {
		t.Errorf("without files: got %q and %q, want nothing", uuid, id)
	}
	for path, text := range map[string]string{"sys/class/dmi/id/product_uuid": "4c4c4544-0042\n", "etc/machine-id": "0123456789abcdef\n"} {
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(path)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, path), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if uuid, id := identity(root); uuid != "4c4c4544-0042" || id != "0123456789abcdef" {
		t.Errorf("got %q and %q, want the content of both files", uuid, id)
	}
}

func TestNamesUpstream(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		text string
		want bool
	}{
		"empty":                {"", false},
		"comments":             {"# nameserver 192.0.2.1\n; nameserver 192.0.2.1\nsearch example.org\n", false},
		"loopback":             {"nameserver 127.0.0.53\nnameserver ::1\n", false},
		"loopback and another": {"nameserver 127.0.0.1\nnameserver\t192.0.2.1", true},
		"IPv6":                 {"nameserver 2001:db8::1\n", true},
		"no address":           {"nameserver\nnameserver example\n", false},
	} {
		if got := namesUpstream(tc.text); got != tc.want {
			t.Errorf("%s: got %t, want %t", name, got, tc.want)
		}
	}
}

func TestHasBit(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		mask string
		bit  int
		want bool
	}{
		"full mask":          {"000001ffffffffff", unix.CAP_SYS_RESOURCE, true},
		"all others":         {"000001fffeffffff", unix.CAP_SYS_RESOURCE, false},
		"this one only":      {"0000000001000000", unix.CAP_SYS_RESOURCE, true},
		"none":               {"0000000000000000", 0, false},
		"lowest bit":         {"1", 0, true},
		"beyond the mask":    {"ff", 24, false},
		"not a mask":         {"z", 0, false},
		"empty":              {"", 0, false},
		"highest of a digit": {"8", 3, true},
	} {
		if got := hasBit(tc.mask, tc.bit); got != tc.want {
			t.Errorf("%s: bit %d of %q: got %t, want %t", name, tc.bit, tc.mask, got, tc.want)
		}
	}
}

func TestIsDefault(t *testing.T) {
	t.Parallel()
	dst := func(cidr string) *net.IPNet {
		_, n, err := net.ParseCIDR(cidr)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for name, tc := range map[string]struct {
		dst  *net.IPNet
		want bool
	}{
		"no destination": {nil, true}, "everything": {dst("0.0.0.0/0"), true}, "half of it": {dst("0.0.0.0/1"), false}, "a network": {dst("192.0.2.0/24"), false},
	} {
		if got := isDefault(netlink.Route{Dst: tc.dst}); got != tc.want {
			t.Errorf("%s: got %t, want %t", name, got, tc.want)
		}
	}
}
