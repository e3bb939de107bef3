// SPDX-License-Identifier: Apache-2.0

// Package machine makes local machines: privileged runc containers with their own pid, net, ipc, uts, mount and cgroup
// namespaces whose root filesystem is an overlay over the host's. It never touches the host's network, its /etc, or any
// mount, cgroup or file that it did not make; the only mounts that the host can see are the pins of network namespaces
// below the package's own root.
//
// Read [Local] and [Spec] first, then [Init], which is PID 1 inside.
//
//	l, err := machine.New(machine.Config{Root: "/var/lib/slipway", Runc: "/path/to/runc", Log: log})
//	change, err := l.Ensure(ctx, machine.Spec{Cluster: "dev", Name: "dev-1"}) // runs; a second call changes nothing
//	code, err := l.Exec(ctx, "dev", "dev-1", machine.Command{Args: []string{"uname", "-n"}, Stdout: os.Stdout})
//	err = l.Destroy(ctx, "dev")                                               // the host is as it was
package machine

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// BinDir is the folder inside a machine that holds the slipway executable; it lies on a real filesystem.
const BinDir = "/opt/slipway/bin"

// RunDir is the folder inside a machine whose sockets the host can reach (see [Local.RunDir]). It is emptied at each boot.
const RunDir = "/run/slipway"

// Local is the machines on this host. It is safe for concurrent use, also by several processes: each machine has a lock of its
// own, taken inside. Who makes or destroys a cluster's machines holds [Local.Lock] as well.
type Local struct {
	root   string // without symlinks
	runc   string
	cgroup string // below every hierarchy's root
	log    *slog.Logger
}

// Config says where local machines live. All fields are required.
type Config struct {
	Root string // "/var/lib/slipway"; must lie on a real filesystem
	Runc string // absolute path of the runc executable
	Log  *slog.Logger
}

// New makes the root folder when it is missing and returns the machines in it.
func New(c Config) (*Local, error) {
	if err := os.MkdirAll(c.Root, 0o711); err != nil {
		return nil, fmt.Errorf("make machine root: %w", err)
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

// Spec is one wanted machine.
type Spec struct {
	Cluster string
	Name    string // also its host name
	Index   int    // position in the cluster

	// Bare machines have neither agent nor component store, as those that somebody else has set up. It takes Init Systemd.
	Bare bool `json:",omitempty"`

	Address netip.Addr   // optional: the subnet's address number 10+Index
	Subnet  netip.Prefix // optional: DefaultSubnet; all machines of a cluster share it
	Binary  string       // optional: the slipway executable on the host; this process's own
	Agent   []string     // optional: arguments of slipway that start the agent; "agent"
	Init    InitKind     `json:",omitempty"` // optional: what the machine has; OwnInit for a new one
	Env     []string     // optional: more environment for PID 1 and the agent
	// Files is optional: path below /var/lib/slipway inside → content. They are written before the first boot and never again,
	// 0600, and no record of them is kept.
	Files map[string][]byte `json:"-"`
}

func (s Spec) withoutFiles() Spec {
	s.Files = nil
	return s
}

// DefaultSubnet exists only inside the clusters' own network namespaces, so every cluster can have the same.
func DefaultSubnet() netip.Prefix { return netip.MustParsePrefix("10.89.0.0/24") }

// Change is what Ensure did.
type Change struct {
	Created bool // the machine did not exist
	Started bool // it did not run
	// BinaryReplaced: slipway inside is another than before. When Started is false, the agent still runs the old one: see
	// [Local.RestartAgent].
	BinaryReplaced bool
}

// None reports whether nothing was done.
func (c Change) None() bool { return c == Change{} }

// Status is one machine as it is now.
type Status struct {
	Name    string     `json:"name"`
	Index   int        `json:"index"`
	Address netip.Addr `json:"address"`
	Init    InitKind   `json:"init,omitempty"`
	Running bool       `json:"running"`
	PID     int        `json:"pid,omitempty"` // of its PID 1, on the host
	Since   time.Time  `json:"since,omitzero"`
	Cut     bool       `json:"cut,omitempty"`     // from the network, see [Local.Cut]
	CutFrom []string   `json:"cutFrom,omitempty"` // machines, see [Local.CutBetween]
	// Unreachable is why nobody knows whether a machine elsewhere runs.
	Unreachable string `json:"unreachable,omitempty"`
}

var nameRule = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// complete fills in what is optional and checks the rest.
func (s Spec) complete() (Spec, error) {
	if err := checkNames(s.Cluster, s.Name); err != nil {
		return s, err
	}
	if !s.Subnet.IsValid() {
		s.Subnet = DefaultSubnet()
	}
	s.Subnet = s.Subnet.Masked()
	if !s.Address.IsValid() {
		s.Address = nth(s.Subnet, 10+s.Index)
	}
	if !s.Subnet.Addr().Is4() || !s.Subnet.Contains(s.Address) || s.Address == gateway(s.Subnet) {
		return s, fmt.Errorf("machine %s: address %s is not a machine's in IPv4 subnet %s", s.Name, s.Address, s.Subnet)
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
	if err := checkInit(s.Init); err != nil {
		return s, fmt.Errorf("machine %s: %w", s.Name, err)
	}
	return s, s.checkFiles()
}

func checkNames(names ...string) error {
	for _, n := range names {
		if !nameRule.MatchString(n) {
			return fmt.Errorf("name %q: use up to 63 of a-z, 0-9 and -, not at the ends", n)
		}
	}
	return nil
}

// gateway is the subnet's first address: the switch's own.
func gateway(p netip.Prefix) netip.Addr { return p.Addr().Next() }

func nth(p netip.Prefix, n int) netip.Addr {
	a := p.Addr()
	for range n {
		a = a.Next()
	}
	return a
}
