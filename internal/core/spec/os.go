// SPDX-License-Identifier: Apache-2.0

package spec

import "time"

// OS is how the machines' operating systems are prepared.
type OS struct {
	Modules  []string
	Sysctls  map[string][]string // nil leaves a default away; otherwise one value
	Packages map[string][]string // by package manager
	Groups   []Group
	Users    []User
	Folders  []Folder
	Limits   map[string]string
	TimeSync string
	Swap     string
	Hostname string
}

// Group of the operating system.
type Group struct {
	Name string
	GID  *int
}

// User of the operating system.
type User struct {
	Name        string
	UID         *int
	Group       string
	Groups      []string
	Home, Shell string
}

// Folder of a machine.
type Folder struct {
	Path         string
	Mode         uint32
	Owner, Group string
}

// Hook is a user's command before or after a phase.
type Hook struct {
	Name          string
	Before, After string
	Command       []string
	Roles         []string
	Timeout       time.Duration
	EveryBoot     bool
}

// The rules of a machine's clock, swap and name.
const (
	TimeRequire, TimeIgnore                = "require", "ignore"
	SwapOff, SwapAllow, SwapRequire        = "off", "allow", "require"
	HostnameKeep, HostnameNode             = "keep", "node"
	DefaultShell                           = "/usr/sbin/nologin"
	DefaultFolderMode               uint32 = 0o755
	DefaultHookTimeout                     = 5 * time.Minute
)

// The phases of a machine's start that hooks name. What is in them is the planner's to say.
const (
	PhasePrepare      = "prepare"
	PhaseFiles        = "files"
	PhaseRuntime      = "runtime"
	PhaseEtcd         = "etcd"
	PhaseControlPlane = "control-plane"
	PhaseKubelet      = "kubelet"
	PhaseKubeProxy    = "kube-proxy"
	PhaseNodeReady    = "node-ready"
)

// Phases lists them in the order in which they begin.
func Phases() []string {
	return []string{PhasePrepare, PhaseFiles, PhaseRuntime, PhaseEtcd, PhaseControlPlane, PhaseKubelet, PhaseKubeProxy, PhaseNodeReady}
}

// LimitNames are the limits that a machine has.
func LimitNames() []string {
	return []string{"as", "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc", "rss", "rtprio", "sigpending", "stack"}
}
