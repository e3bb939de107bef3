// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// folders is where one machine's things are on the host.
type folders struct{ dir string }

func (f folders) bundle() string  { return filepath.Join(f.dir, "bundle") }
func (f folders) rootfs() string  { return filepath.Join(f.dir, "rootfs") }
func (f folders) upper() string   { return filepath.Join(f.dir, "upper") }
func (f folders) work() string    { return filepath.Join(f.dir, "work") }
func (f folders) run() string     { return filepath.Join(f.dir, "run") }
func (f folders) bin() string     { return filepath.Join(f.dir, "bin") }
func (f folders) netns() string   { return filepath.Join(f.dir, "netns") }
func (f folders) state() string   { return filepath.Join(f.dir, "state.json") }
func (f folders) pidFile() string { return filepath.Join(f.dir, "bundle", "pid") }
func (f folders) console() string { return filepath.Join(f.dir, "console.log") }

func (f folders) data(name string) string { return filepath.Join(f.dir, "data", name) }

func (l *Local) clusters() string                 { return filepath.Join(l.root, "machines") }
func (l *Local) clusterDir(cluster string) string { return filepath.Join(l.clusters(), cluster) }
func (l *Local) switchPin(cluster string) string {
	return filepath.Join(l.clusterDir(cluster), "switch")
}

func (l *Local) runcRoot(cluster string) string { return filepath.Join(l.clusterDir(cluster), ".runc") }

func (l *Local) folders(cluster, n string) folders {
	return folders{filepath.Join(l.clusterDir(cluster), n)}
}

// StoreDir is the component store on the host; machines see it, read-only, at /var/lib/slipway/store.
func (l *Local) StoreDir() string { return filepath.Join(l.root, "store") }

// Binary is the host's path of the machine's own copy of slipway.
func (l *Local) Binary(cluster, name string) string {
	return filepath.Join(l.folders(cluster, name).bin(), "slipway")
}

// RunDir is the host's path of the machine's /run/slipway: the agent's sockets are there.
func (l *Local) RunDir(cluster, name string) string { return l.folders(cluster, name).run() }

// Console is the host's path of what the machine's first process said since its last boot.
func (l *Local) Console(cluster, name string) string { return l.folders(cluster, name).console() }

// DataDir is the host's path of a folder that the machine keeps: "slipway" for /var/lib/slipway, "log" for /var/log, …
func (l *Local) DataDir(cluster, name, folder string) string {
	return l.folders(cluster, name).data(folder)
}

// binds are the machine's own folders that hide the host's: destination inside → name below data.
func binds() map[string]string {
	return map[string]string{
		"/etc/kubernetes":     "etc-kubernetes",
		"/etc/cni":            "etc-cni",
		"/opt/cni":            "opt-cni",
		"/var/lib/kubelet":    "kubelet",
		"/var/lib/etcd":       "etcd",
		"/var/lib/containerd": "containerd",
		"/var/lib/cni":        "cni",
		"/var/lib/slipway":    "slipway",
		"/var/log":            "log",
		"/root":               "root",
		"/home":               "home",
	}
}

// makeFolder makes the machine's own folder, so that there is something to lock.
func (l *Local) makeFolder(s Spec) (created bool, err error) {
	f := l.folders(s.Cluster, s.Name)
	if err := os.MkdirAll(filepath.Dir(f.dir), 0o755); err != nil {
		return false, fmt.Errorf("make machine folder: %w", err)
	}
	err = os.Mkdir(f.dir, 0o755)
	if errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("make machine folder: %w", err)
	}
	return true, nil
}

// makeFolders makes what is missing of the machine's folders and its own files in /etc. What exists stays.
func (l *Local) makeFolders(s Spec) error {
	f := l.folders(s.Cluster, s.Name)
	dirs := []string{
		l.StoreDir(), l.runcRoot(s.Cluster), f.bundle(), f.rootfs(), f.work(), f.run(), f.bin(), filepath.Join(f.upper(), "etc"),
		f.data("slipway/store"), f.data("log/pods"), f.data("log/containers"), f.data("log/slipway"),
	}
	for _, name := range binds() {
		dirs = append(dirs, f.data(name))
	}
	if s.Init == Systemd {
		dirs = append(dirs, f.data(systemdData))
	}
	for _, d := range dirs {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return fmt.Errorf("make machine folder: %w", err)
		}
	}
	for _, private := range []string{l.clusterDir(s.Cluster), f.data("root"), f.data("etcd"), f.data("slipway"), f.run()} {
		if err := os.Chmod(private, 0o700); err != nil {
			return fmt.Errorf("close machine folder: %w", err)
		}
	}
	return writeOwnFiles(s, filepath.Join(f.upper(), "etc"))
}

// writeOwnFiles puts the files that make a machine another one than its host into the overlay's upper layer, where the
// machine may replace them later.
func writeOwnFiles(s Spec, etc string) error {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails
	own := map[string]string{
		"hostname":    s.Name + "\n",
		"hosts":       fmt.Sprintf("127.0.0.1 localhost\n::1 localhost ip6-localhost\n%s %s\n", s.Address, s.Name),
		"resolv.conf": "# Machines have no upstream name server.\n",
		"machine-id":  hex.EncodeToString(id) + "\n",
	}
	for name, content := range own {
		path := filepath.Join(etc, name)
		if info, err := os.Lstat(path); err == nil && info.Size() > 0 {
			continue
		}
		tmp := path + ".slipway"
		if err := errors.Join(os.WriteFile(tmp, []byte(content), 0o644), os.Rename(tmp, path)); err != nil {
			return fmt.Errorf("write machine file: %w", err)
		}
	}
	return nil
}

// emptyRun makes /run/slipway what it is after a boot: empty. Sockets of a machine that lost its power must not look alive.
func emptyRun(f folders) error {
	entries, err := os.ReadDir(f.run())
	if err != nil {
		return fmt.Errorf("empty machine run folder: %w", err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(f.run(), e.Name())); err != nil {
			return fmt.Errorf("empty machine run folder: %w", err)
		}
	}
	return nil
}

// machineNames lists the machines that have a folder. Names that begin with a dot are the cluster's own.
func (l *Local) machineNames(cluster string) ([]string, error) {
	entries, err := os.ReadDir(l.clusterDir(cluster))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list machines: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") && nameRule.MatchString(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}
