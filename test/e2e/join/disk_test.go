// SPDX-License-Identifier: Apache-2.0

package join_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/test/e2e/kit"
)

// diskSize, a gibibyte, is what a machine that is control plane and worker needs, several times.
const diskSize = "1g"

// ownDisk gives the machine that is to be made a disk of its own, in memory.
func ownDisk(c *kit.Cluster) (disk string) {
	c.T.Helper()
	disk = c.Data()
	if err := os.MkdirAll(disk, 0o755); err != nil {
		c.T.Fatal(err)
	}
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "mode=0755,size="+diskSize); err != nil {
		c.T.Fatal(err)
	}
	c.T.Cleanup(func() {
		c.Slipway("machine", "stop", c.Node) // it may not have been made
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			c.T.Errorf("unmount %s: %v", disk, err)
		}
	})
	return disk
}

// clearly runs up on a broken disk and wants to be told of it. undone: the disk was full when the request itself was to be kept, and
// all that had been made was taken back.
func clearly(c *kit.Cluster, words string) (undone bool) {
	c.T.Helper()
	r := c.Slipway("up", "--wait", "8s")
	if r.Code == 0 {
		c.T.Fatalf("the cluster came up on a broken disk: %s", r)
	}
	c.T.Logf("told after %.1f s: %s", r.Elapsed.Seconds(), lastLine(r.Err))
	if strings.Contains(r.Out+r.Err, words) {
		return strings.Contains(r.Err, "the machine is free again")
	}
	kit.Until(c.T, soon, "the status says "+words, func() error { // a component that is just tried again has no reason for a moment
		if s := c.Slipway("status", "--output", "json"); !strings.Contains(s.Out, words) {
			return errors.New(lastLine(s.Out))
		}
		return nil
	})
	return false
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// TestFullDisk: the disk is full at different moments of init. Once there is room again, the cluster is made.
func TestFullDisk(t *testing.T) {
	for name, moment := range map[string]string{
		"from the beginning": "",
		"after the plan":     "slipway/plan/plan.json",
		"after etcd":         "etcd/member/wal",
	} {
		t.Run(name, func(t *testing.T) {
			c := kit.New(t, "disk")
			disk := ownDisk(c)
			filler := filepath.Join(disk, "filler")
			ballast(t, filler+"-before")
			if moment != "" {
				cmd := c.Start("up", "--wait", "0")
				kit.Until(t, soon, moment+" exists", func() error { _, err := os.Stat(filepath.Join(disk, moment)); return err })
				fill(t, filler)
				_ = cmd.Wait() // whatever it says: the next one has to tell
			} else {
				fill(t, filler)
			}
			before := authorities(c)
			undone := clearly(c, "no space left on device")
			if err := errors.Join(os.Remove(filler), os.Remove(filler+"-before")); err != nil {
				t.Fatal(err)
			}
			c.MustUp()
			c.Healthy(soon)
			if now := authorities(c); len(now) < 6 || moment == "etcd/member/wal" && !undone && len(changed(before, now)) > 0 {
				t.Errorf("authorities before %v and after %v", before, now)
			}
		})
	}
}

// ballast leaves of the disk what is filled in a moment: more than etcd takes for its log.
func ballast(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, 1<<30-160<<20); err != nil {
		t.Fatal(err)
	}
}

// fill takes what is left of the disk, to the last byte.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, size := range []int{1 << 20, 4096, 1} {
		block := make([]byte, size)
		for err == nil {
			_, err = f.Write(block)
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		err = nil
	}
}

// TestReadOnlyDisk: as after a defect.
func TestReadOnlyDisk(t *testing.T) {
	c := kit.New(t, "disk")
	disk := ownDisk(c)
	c.Must("up", "--wait", "0")
	kit.Until(t, soon, "the CAs exist", func() error { _, err := os.Stat(filepath.Join(disk, "etc-kubernetes/pki/ca.key")); return err })
	c.Machine("stop", c.Node)
	remount(t, disk, unix.MS_RDONLY)
	clearly(c, "read-only file system")
	remount(t, disk, 0)
	c.MustUp()
	c.Healthy(soon)
}

func remount(t *testing.T, disk string, flags uintptr) {
	t.Helper()
	kit.Until(t, soon, "the disk is remounted", func() error { return unix.Mount("", disk, "", unix.MS_REMOUNT|flags, "") })
}
