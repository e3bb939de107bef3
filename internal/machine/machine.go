// SPDX-License-Identifier: Apache-2.0

// Package machine runs local machines: privileged runc containers with their own pid, net, ipc, uts, mount
// and cgroup namespaces and an overlay over the host's root filesystem. It never changes the host's network,
// its /etc, or any mount, cgroup or file that it did not create. The only mounts visible on the host are the
// bind mounts that pin network namespaces, below the package's own root directory.
//
// Read [Local] and [Spec] first, then [Init], which runs as PID 1 inside.
//
//	l, err := machine.New(machine.Config{Root: "/var/lib/slipway", Runc: "/path/to/runc", Log: log})
//	change, err := l.Ensure(ctx, machine.Spec{Cluster: "dev", Name: "dev-1"}) // runs; a second call changes nothing
//	code, err := l.Exec(ctx, "dev", "dev-1", machine.Command{Args: []string{"uname", "-n"}, Stdout: os.Stdout})
//	err = l.Destroy(ctx, "dev")                                               // leaves nothing on the host
package machine

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/durable"
)

// BinDir is the directory inside a machine that holds the slipway executable. It is on a real filesystem, not
// the overlay.
const BinDir = "/opt/slipway/bin"

// RunDir is the directory inside a machine for sockets that the host can reach (see [Local.RunDir]). Each
// boot empties it.
const RunDir = "/run/slipway"

// Local manages the machines on this host. It is safe for concurrent use, also by several processes: its
// methods take a lock per machine. A caller that creates or destroys a cluster's machines also holds
// [Local.Lock].
type Local struct {
	root   string // without symlinks
	runc   string // path of the executable
	cgroup string // path below the root of every cgroup hierarchy
	log    *slog.Logger
}

// Config is the configuration of a [Local]. All fields are required.
type Config struct {
	Root string // "/var/lib/slipway"; must be on a real filesystem, not an overlay
	Runc string // absolute path of the runc executable
	Log  *slog.Logger
}

// New returns the machines below c.Root and creates that directory if it does not exist.
func New(c Config) (*Local, error) {
	if err := os.MkdirAll(c.Root, 0o711); err != nil {
		return nil, fmt.Errorf("create machine root: %w", err)
	}
	root, err := filepath.EvalSymlinks(c.Root)
	if err != nil {
		return nil, fmt.Errorf("resolve machine root: %w", err)
	}
	root, err = filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("resolve machine root: %w", err)
	}
	return &Local{root: root, runc: c.Runc, cgroup: cgroupParent(root), log: c.Log}, nil
}

// Spec is the desired state of one machine.
type Spec struct {
	Cluster string
	Name    string // also its host name
	Index   int    // position in the cluster, from 0

	// Bare machines have no agent and no component store, like a machine that an administrator has set up.
	// Requires Systemd.
	Bare bool `json:",omitempty"`

	Address netip.Addr   // optional: default is address number 10+Index of the subnet
	Subnet  netip.Prefix // optional: default is DefaultSubnet; all machines of a cluster share it
	Binary  string       // optional: slipway executable on the host; default is this process's executable
	Agent   []string     // optional: slipway arguments that start the agent; default is "agent"
	Init    InitKind     `json:",omitempty"` // optional: default is what the machine has, and OwnInit for a new one
	Env     []string     // optional: additional environment of PID 1 and the agent
	// Files is optional and maps paths below /var/lib/slipway in the machine to contents. They are written
	// with mode 0600 before the first boot and never again, and are not recorded.
	Files map[string][]byte `json:"-"`
}

// withoutFiles is the spec as it is recorded.
func (s Spec) withoutFiles() Spec {
	s.Files = nil
	return s
}

// DefaultSubnet is used inside the clusters' own network namespaces only, so all clusters can share it.
func DefaultSubnet() netip.Prefix { return netip.MustParsePrefix("10.89.0.0/24") }

// Change reports what [Local.Ensure] did.
type Change struct {
	Created bool // the machine did not exist before
	Started bool // the machine was not running before
	// BinaryReplaced: the slipway executable inside changed. If Started is false, the agent still runs the
	// old one: see [Local.RestartAgent].
	BinaryReplaced bool
}

// None reports whether nothing was done.
func (c Change) None() bool { return c == Change{} }

// Status is the observed state of one machine.
type Status struct {
	Name    string     `json:"name"`
	Index   int        `json:"index"`
	Address netip.Addr `json:"address"`
	Init    InitKind   `json:"init,omitempty"`
	Running bool       `json:"running"`
	PID     int        `json:"pid,omitempty"` // of its PID 1, on the host
	Since   time.Time  `json:"since,omitzero"`
	Cut     bool       `json:"cut,omitempty"`     // disconnected from the network, see [Local.Cut]
	CutFrom []string   `json:"cutFrom,omitempty"` // machines it cannot reach, see [Local.CutBetween]
	// Unreachable is the reason why the state of a remote machine is unknown.
	Unreachable string `json:"unreachable,omitempty"`
}

var nameRule = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// complete applies the defaults and validates the spec.
func (s Spec) complete() (Spec, error) {
	if err := checkNames(s.Cluster, s.Name); err != nil {
		return s, err
	}
	if !s.Subnet.IsValid() {
		s.Subnet = DefaultSubnet()
	}
	s.Subnet = s.Subnet.Masked()
	if !s.Address.IsValid() {
		s.Address = s.Subnet.Addr()
		for range 10 + s.Index {
			s.Address = s.Address.Next()
		}
	}
	if !s.Subnet.Addr().Is4() || !s.Subnet.Contains(s.Address) || s.Address == gateway(s.Subnet) {
		return s, fmt.Errorf("machine %s: address %s is not usable in IPv4 subnet %s", s.Name, s.Address, s.Subnet)
	}
	if s.Binary == "" {
		self, err := os.Executable()
		if err != nil {
			return s, fmt.Errorf("find own executable: %w", err)
		}
		s.Binary = self
	}
	if len(s.Agent) == 0 {
		s.Agent = []string{"agent"}
	}
	if s.Init != "" && !slices.Contains(InitKinds(), s.Init) {
		return s, fmt.Errorf("machine %s: init %q: use one of %v", s.Name, s.Init, InitKinds())
	}
	for p := range s.Files {
		if !filepath.IsLocal(p) || path.Clean(p) != p || p == "." || p == "store" || strings.HasPrefix(p, "store/") {
			return s, fmt.Errorf("machine %s: file %q: use a path below /var/lib/slipway that is not in the store", s.Name, p)
		}
	}
	return s, nil
}

// checkNames validates names of clusters and machines, which become parts of paths.
func checkNames(names ...string) error {
	for _, n := range names {
		if !nameRule.MatchString(n) {
			return fmt.Errorf("name %q: use 1 to 63 characters of a-z, 0-9 and -, with no - at either end", n)
		}
	}
	return nil
}

// gateway is the subnet's first address, which belongs to the switch.
func gateway(p netip.Prefix) netip.Addr { return p.Addr().Next() }

// paths locates the host's files of one machine.
type paths struct{ dir string }

func (f paths) bundle() string  { return filepath.Join(f.dir, "bundle") }
func (f paths) rootfs() string  { return filepath.Join(f.dir, "rootfs") }
func (f paths) upper() string   { return filepath.Join(f.dir, "upper") }
func (f paths) work() string    { return filepath.Join(f.dir, "work") }
func (f paths) run() string     { return filepath.Join(f.dir, "run") }
func (f paths) bin() string     { return filepath.Join(f.dir, "bin") }
func (f paths) netns() string   { return filepath.Join(f.dir, "netns") }
func (f paths) state() string   { return filepath.Join(f.dir, "state.json") }
func (f paths) pidFile() string { return filepath.Join(f.dir, "bundle", "pid") }
func (f paths) console() string { return filepath.Join(f.dir, "console.log") }

func (f paths) data(name string) string { return filepath.Join(f.dir, "data", name) }

func (l *Local) clusters() string                 { return filepath.Join(l.root, "machines") }
func (l *Local) clusterDir(cluster string) string { return filepath.Join(l.clusters(), cluster) }

// switchPin is where the network namespace of the cluster's switch is mounted.
func (l *Local) switchPin(cluster string) string {
	return filepath.Join(l.clusterDir(cluster), "switch")
}

func (l *Local) runcRoot(cluster string) string { return filepath.Join(l.clusterDir(cluster), ".runc") }

func (l *Local) paths(cluster, n string) paths {
	return paths{filepath.Join(l.clusterDir(cluster), n)}
}

// StoreDir is the component store on the host. Machines see it read-only at /var/lib/slipway/store.
func (l *Local) StoreDir() string { return filepath.Join(l.root, "store") }

// Binary is the host path of the machine's copy of the slipway executable.
func (l *Local) Binary(cluster, name string) string {
	return filepath.Join(l.paths(cluster, name).bin(), "slipway")
}

// RunDir is the host path of the machine's /run/slipway, which contains the agent's sockets.
func (l *Local) RunDir(cluster, name string) string { return l.paths(cluster, name).run() }

// Console is the host path of the output of the machine's PID 1 since the last boot.
func (l *Local) Console(cluster, name string) string { return l.paths(cluster, name).console() }

// DataDir is the host path of one of the machine's persistent directories: "slipway" is /var/lib/slipway,
// "log" is /var/log (see binds).
func (l *Local) DataDir(cluster, name, dir string) string {
	return l.paths(cluster, name).data(dir)
}

// binds lists the machine's own directories that are mounted over the host's: path inside → name below data.
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

// createDirs creates the missing directories of a machine and its own files in /etc. It keeps what exists.
func (l *Local) createDirs(s Spec) error {
	f := l.paths(s.Cluster, s.Name)
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
			return fmt.Errorf("create machine directory: %w", err)
		}
	}
	for _, private := range []string{l.clusterDir(s.Cluster), f.data("root"), f.data("etcd"), f.data("slipway"), f.run()} {
		if err := os.Chmod(private, 0o700); err != nil {
			return fmt.Errorf("restrict machine directory: %w", err)
		}
	}
	return writeOwnFiles(s, filepath.Join(f.upper(), "etc"))
}

// writeOwnFiles writes the files that give a machine its own identity to the overlay's upper layer. The
// machine may change them later, so it only writes those that are missing or empty.
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

// emptyRun removes everything in /run/slipway, as a boot does: sockets left by a power cut must not look live.
func emptyRun(f paths) error {
	entries, err := os.ReadDir(f.run())
	if err != nil {
		return fmt.Errorf("empty run directory: %w", err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(f.run(), e.Name())); err != nil {
			return fmt.Errorf("empty run directory: %w", err)
		}
	}
	return nil
}

// machineNames lists the machines that have a directory. Names with a leading dot belong to the cluster itself.
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

// Lock ensures that only one command at a time changes a cluster. While another process holds the lock, Lock
// calls waiting with the holder ("process 4711: slipway up, since …"), and again when the holder changes. The
// lock ends with unlock or with this process.
func (l *Local) Lock(ctx context.Context, cluster string, waiting func(holder string)) (unlock func(), err error) {
	if err := checkNames(cluster); err != nil {
		return nil, err
	}
	path := filepath.Join(l.root, "locks", cluster)
	note := fmt.Sprintf("process %d: %s", os.Getpid(), strings.Join(os.Args, " "))
	for {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, fmt.Errorf("lock cluster %s: %w", cluster, err)
		}
		held, err := durable.LockFile(ctx, path, note, waiting)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the previous holder has just removed the directory
		}
		if err != nil {
			return nil, fmt.Errorf("lock cluster %s: %w", cluster, err)
		}
		return func() {
			_ = os.Remove(path) // while it is still locked
			_ = os.Remove(filepath.Dir(path))
			held()
		}, nil
	}
}

// lockMachine serializes changes of one machine across goroutines and processes. It locks the machine's
// directory, so there is no lock file to clean up. The error is an fs.ErrNotExist if the machine is removed
// in the meantime.
func (l *Local) lockMachine(ctx context.Context, cluster, name string) (unlock func(), err error) {
	unlock, err = durable.LockDir(ctx, l.paths(cluster, name).dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("machine %s of cluster %s: %w", name, cluster, fs.ErrNotExist)
	}
	if err != nil {
		return nil, fmt.Errorf("lock machine %s, in use by another slipway command: %w", name, err)
	}
	return unlock, nil
}
