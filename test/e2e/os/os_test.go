// SPDX-License-Identifier: Apache-2.0

// Package os_test prepares the operating system of a real machine: a sysctl, a package from a repository on its own disk, accounts, a
// directory, and hooks, one of which fails first.
package os_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/testkit"
	"github.com/slipway-project/slipway/test/e2e/kit"
)

const specText = `apiVersion: slipway.dev/v1alpha1
kind: Cluster
metadata: {name: %s}
spec:
  os:
    sysctls:
      net.core.somaxconn: %d
      vm.swappiness: %d       # a setting of the host's kernel, which slipway must not change
    packages: {apt: [slipway-e2e-greeting]}
    groups: [{name: e2eops, gid: 64001}]
    users: [{name: e2eweb, uid: 64002, group: e2eops, home: /srv/e2eweb}]
    directories: [{path: /srv/e2edata, mode: 0750, owner: e2eweb, group: e2eops}]
    limits: {nofile: 65536}
    swap: "off"
    hostname: node
  hooks:
  - {name: door, before: kubelet, command: [/bin/sh, -c, 'test -e /srv/open || { echo "the door of ${node.name} is closed"; exit 3; }; echo %s >> /srv/door']}
  - {name: boots, after: files, command: [/bin/sh, -c, echo boot >> /srv/boots], everyBoot: true}
  - {name: greet, after: node-ready, command: [/usr/bin/greet-e2e]}
`

func TestOS(t *testing.T) {
	c := kit.New(t, "os")
	hostSwappiness := hostSetting(t, "vm/swappiness")
	hostBacklog := hostSetting(t, "net/core/somaxconn")
	wanted := 10
	if hostSwappiness == "10" {
		wanted = 20
	}
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	write := func(backlog int, visitor string) {
		if err := os.WriteFile(file, fmt.Appendf(nil, specText, c.Name, backlog, wanted, visitor), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(1234, "first")
	if r := c.Slipway("up", "--file", file, "--wait", "25s"); r.Code != 5 {
		t.Fatalf("up with a failing hook and a missing package: want exit code 5, got %s", r)
	}
	shows(t, c, "unit/os-packages", "packages are not installed: slipway-e2e-greeting")
	addRepository(t, c)
	shows(t, c, "unit/hook-door", "the door of "+c.Node+" is closed")
	if _, err := c.TryProcess("kubelet"); err == nil {
		t.Error("the kubelet runs, although the hook before it fails")
	}
	if _, err := c.TryProcess("etcd"); err != nil {
		t.Errorf("etcd must not wait for the hook: %v", err)
	}
	c.Exec("touch /srv/open")
	c.MustUp("--file", file)
	c.Healthy(time.Minute)
	prepared(t, c, 1234)
	if hostSetting(t, "vm/swappiness") != hostSwappiness || hostSetting(t, "net/core/somaxconn") != hostBacklog {
		t.Error("settings of the host: got changed ones, want them as before")
	}
	c.UpToDate("--file", file)
	if r := c.Slipway("why", "os.sysctls.net.core.somaxconn"); !strings.Contains(r.Out, "1234 (user, ") && !strings.Contains(r.Out, `"1234" (user, `) {
		t.Errorf("slipway why: want 1234 (user, …), got %s", r)
	}
	edited(t, c, func() { write(2345, "second"); c.MustUp("--file", file) })
	rebooted(t, c)
}

// shows waits until the status has the failing item and the reason.
func shows(t *testing.T, c *kit.Cluster, item, reason string) {
	t.Helper()
	testkit.Until(t, 5*time.Minute, "status shows "+item, func() error {
		text := c.Slipway("status").Out
		if !strings.Contains(text, item) || !strings.Contains(text, reason) {
			return fmt.Errorf("want %q, got\n%s", reason, text)
		}
		return nil
	})
}

// addRepository replaces apt's sources by a repository on the machine's own disk.
func addRepository(t *testing.T, c *kit.Cluster) {
	t.Helper()
	repository, err := os.Open(newRepository(t))
	if err != nil {
		t.Fatal(err)
	}
	defer repository.Close()
	c.ExecIn(repository, `set -e
mkdir -p /srv/repository /etc/apt/sources.list.d
tar -C /srv/repository -xf -
rm -f /etc/apt/sources.list /etc/apt/sources.list.d/*
echo "deb [trusted=yes] file:/srv/repository ./" > /etc/apt/sources.list`)
}

// newRepository creates a tar file with a package and its index.
func newRepository(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	script := `set -e
cd "$1"
mkdir -p tree/DEBIAN tree/usr/bin repository
printf 'Package: slipway-e2e-greeting\nVersion: 1\nArchitecture: all\nMaintainer: tests <tests@example.org>\nDescription: a greeting\n' > tree/DEBIAN/control
printf '#!/bin/sh\necho hello >> /srv/greetings\n' > tree/usr/bin/greet-e2e
chmod 755 tree/usr/bin/greet-e2e
dpkg-deb --root-owner-group --build tree repository/greeting.deb
cd repository
{ dpkg-deb --field greeting.deb; echo Filename: ./greeting.deb; echo Size: $(stat -c %s greeting.deb); echo SHA256: $(sha256sum greeting.deb | cut -d' ' -f1); } > Packages
tar -cf ../repository.tar .
`
	if r := kit.Run(t, "sh", "-c", script, "sh", dir); r.Code != 0 {
		t.Fatalf("create package: %s", r)
	}
	return filepath.Join(dir, "repository.tar")
}

func prepared(t *testing.T, c *kit.Cluster, backlog int) {
	t.Helper()
	for command, want := range map[string]string{
		"cat /proc/sys/net/core/somaxconn":                                          fmt.Sprint(backlog),
		"grep -c ^net.core.somaxconn /etc/sysctl.d/90-slipway.conf":                 "1",
		"dpkg-query --show --showformat='${db:Status-Status}' slipway-e2e-greeting": "installed",
		"id e2eweb":                                        "uid=64002(e2eweb) gid=64001(e2eops) groups=64001(e2eops)",
		"stat -c '%U %G %a' /srv/e2edata":                  "e2eweb e2eops 750",
		"stat -c %U /srv/e2eweb":                           "e2eweb",
		"getent shadow e2eweb | cut -d: -f2":               "!",
		"hostname; cat /etc/hostname":                      c.Node + "\n" + c.Node,
		"cat /srv/greetings":                               "hello",
		"grep root /etc/security/limits.d/90-slipway.conf": "root - nofile 65536",
	} {
		if got := strings.TrimSpace(c.Exec(command)); got != want {
			t.Errorf("%s: got %q, want %q", command, got, want)
		}
	}
}

// edited changes a hook and a sysctl: only the changed hook runs again, and no component restarts.
func edited(t *testing.T, c *kit.Cluster, edit func()) {
	t.Helper()
	before, err := c.Units()
	if err != nil {
		t.Fatal(err)
	}
	edit()
	c.Healthy(30 * time.Second)
	prepared(t, c, 2345)
	if got := c.Exec("cat /srv/door"); got != "first\nsecond\n" {
		t.Errorf("runs of hook door: got %q, want first and second", got)
	}
	after, err := c.Units()
	if err != nil {
		t.Fatal(err)
	}
	for name, pid := range kit.Steady(after) {
		if before[name].PID != pid {
			t.Errorf("PID of %s: got %d, want %d as before", name, pid, before[name].PID)
		}
	}
}

// rebooted reboots the machine: its new network namespace gets the sysctl again, and only the hook for every boot runs again.
func rebooted(t *testing.T, c *kit.Cluster) {
	t.Helper()
	c.Machine("stop", c.Node)
	c.Machine("start", c.Node)
	if r := c.Slipway("wait", "--for", "cluster", "--timeout", "2m"); r.Code != 0 {
		t.Fatalf("wait after a reboot: %s", r)
	}
	c.Healthy(time.Minute)
	prepared(t, c, 2345)
	if got := c.Exec("cat /srv/boots /srv/door"); got != "boot\nboot\nfirst\nsecond\n" {
		t.Errorf("runs of hooks boots and door: got %q, want two and two", got)
	}
}

func hostSetting(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("/proc/sys/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}
