// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/slipway-project/slipway/internal/sleep"
)

func newFile(t *testing.T) File {
	t.Helper()
	dir := t.TempDir()
	return File{Env: filepath.Join(dir, "facts.env"), Dir: filepath.Join(dir, "facts"), Zone: filepath.Join(dir, "zone"), Log: slog.New(slog.DiscardHandler)}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(text)
}

func TestFileHasNoEmptyValues(t *testing.T) {
	t.Parallel()
	f := newFile(t)
	if err := f.write(map[string]string{"DEFAULT_IPV4": "192.0.2.1", "ZONE": "a"}); err != nil {
		t.Fatal(err)
	}
	if err := f.write(map[string]string{"ZONE": "b"}); err != nil {
		t.Fatal(err)
	}
	if got := read(t, f.Env); got != "ZONE=b\n" {
		t.Errorf("facts.env: got %q, want ZONE=b", got)
	}
	if got := read(t, filepath.Join(f.Dir, "ZONE")); got != "b\n" {
		t.Errorf("file ZONE: got %q, want b", got)
	}
	if _, err := os.Stat(filepath.Join(f.Dir, "DEFAULT_IPV4")); !os.IsNotExist(err) {
		t.Errorf("file of an unknown fact: got %v, want that it does not exist", err)
	}
}

func TestGatherDisksAndDMI(t *testing.T) {
	t.Parallel()
	sys := t.TempDir()
	for path, text := range map[string]string{
		"block/vda/device/x": "", "block/vda/size": "2048\n", "block/nvme0n1/device/x": "", "block/nvme0n1/size": "8\n", "block/loop0/size": "8\n",
		"block/sr0/device/x": "", "block/sr0/size": "0\n", "class/dmi/id/sys_vendor": "A \"B\" & Co\n", "class/dmi/id/product_serial": "secret\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(sys, path)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(sys, path), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f := newFile(t)
	if err := os.WriteFile(f.Zone, []byte(" eu 1a\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := f.gather(sys)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range got {
		if value == "" || strings.ContainsAny(value, " \n\"") {
			t.Errorf("%s=%q", name, value)
		}
		if strings.HasSuffix(name, "_IPV4") || name == "HOSTNAME" || name == "PRODUCT_UUID" || name == "MACHINE_ID" { // this machine's
			delete(got, name)
		}
	}
	want := map[string]string{"DISKS": "nvme0n1,vda", "DISK_NVME0N1_BYTES": "4096", "DISK_VDA_BYTES": "1048576", "DMI_SYS_VENDOR": "A__B__&_Co", "ZONE": "eu_1a"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("facts (-want +got):\n%s", diff)
	}
}

// Keep runs in a separate network namespace, in which the test changes addresses and routes.
func TestKeepFollowsTheNetwork(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root for a network namespace")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	f, made, kept, changed := newFile(t), make(chan netns.NsHandle), make(chan error, 1), make(chan error, 1)
	go func() { // the threads are not unlocked: they end with their goroutines
		runtime.LockOSThread()
		ns, err := netns.New()
		if err != nil {
			close(made)
			changed <- err
			return
		}
		made <- ns
		changed <- changes(ctx, f)
	}()
	go func() {
		runtime.LockOSThread()
		ns, ok := <-made
		if !ok {
			kept <- nil
			return
		}
		defer ns.Close()
		err := netns.Set(ns)
		if err == nil {
			err = f.Keep(ctx)
		}
		kept <- err
	}()
	if err := <-changed; err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-kept; err != nil {
		t.Error(err)
	}
}

func changes(ctx context.Context, f File) error {
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth-0"}, PeerName: "other"}
	if err := netlink.LinkAdd(link); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	address := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(192, 0, 2, 7), Mask: net.CIDRMask(24, 32)}}
	route := &netlink.Route{LinkIndex: link.Index, Gw: net.IPv4(192, 0, 2, 1)}
	peer, err := netlink.LinkByName("other")
	if err != nil {
		return err
	}
	for _, step := range []struct {
		do   func() error
		want string
	}{
		{func() error { return netlink.LinkSetUp(peer) }, ""},
		{func() error { return netlink.AddrAdd(link, address) }, "ETH_0_IPV4=192.0.2.7"},
		{func() error { return netlink.RouteAdd(route) }, "DEFAULT_IPV4=192.0.2.7 ETH_0_IPV4=192.0.2.7"},
		{func() error { return netlink.RouteDel(route) }, "ETH_0_IPV4=192.0.2.7"},
	} {
		if err := step.do(); err != nil {
			return err
		}
		if err := await(ctx, f, step.want); err != nil {
			return err
		}
	}
	return nil
}

// await waits for less than the interval, so only a notification can cause the update.
func await(ctx context.Context, f File, want string) error {
	ctx, cancel := context.WithTimeout(ctx, interval/2)
	defer cancel()
	for {
		var got []string
		text, err := os.ReadFile(f.Env)
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "_IPV4=") {
				got = append(got, strings.TrimSpace(line))
			}
		}
		if have := strings.Join(got, " "); err == nil && have == want {
			return nil
		} else if sleep.For(ctx, 5*time.Millisecond) != nil {
			return fmt.Errorf("got facts %q, want %q", have, want)
		}
	}
}
