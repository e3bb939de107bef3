// SPDX-License-Identifier: Apache-2.0

// Package systemd is the text of unit files: that of the agent, those of a plan's units, and those of the two handles on which
// others may wait. It is pure: it never looks at a machine, never talks to systemd, and the same plan gives the same bytes.
//
// Names begin with "slipway-", so that no unit of the distribution (containerd.service, kubelet.service) is ever touched.
// Every unit lies in slipway.slice.
//
// Read [Service] first, which backend/systemd writes on a live machine; [Render] gives a whole plan as a folder of files.
//
//	os.WriteFile("/etc/systemd/system/slipway-agent.service", systemd.AgentService("/usr/local/bin/slipway"), 0o644)
package systemd

import (
	"path"
	"strings"
)

// Names of what is not one of the plan's units.
const (
	AgentUnit     = "slipway-agent.service"
	Slice         = "slipway.slice"
	NodeTarget    = "slipway.target"         // this node works
	ClusterTarget = "slipway-cluster.target" // the whole cluster does, as this node sees it
	Prefix        = "slipway-"
)

// ServiceName is the name of the service that runs a plan's unit.
func ServiceName(prefix, unit string) string { return prefix + unit + ".service" }

// AgentService is the text of the agent's own unit, the only one that is enabled: a boot starts the agent, and the agent
// decides about everything else. exe is the path of this program. A restart of the agent leaves all that it has started alone.
func AgentService(exe string) []byte {
	return []byte(head + `[Unit]
Description=Slipway node agent
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart=` + quote(exe) + ` agent
Environment=` + quoteEnv("PATH="+path.Dir(exe)+":"+usualPath) + `
Slice=` + Slice + `
Restart=always
RestartSec=50ms
KillMode=process
Delegate=yes
TasksMax=infinity
LimitNOFILE=1048576
TimeoutStartSec=infinity
TimeoutStopSec=30s

[Install]
WantedBy=multi-user.target
`)
}

// usualPath is where programs of the distribution are.
const usualPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

const head = "# Written by slipway, which overwrites what is changed here.\n"

// SliceUnit is the text of the slice that all units lie in.
func SliceUnit() []byte {
	return []byte(head + "[Unit]\nDescription=Slipway: the components of this node\n")
}

// NodeTargetUnit is the text of the handle of the node. The agent starts it when everything of the node's plan is ready and stops
// it when something is not; nothing else pulls it in, so being reached means that the node works.
func NodeTargetUnit(services []string) []byte {
	return target("Slipway: this node works", services)
}

// ClusterTargetUnit is the text of the handle of the cluster: the check from end to end has passed. node is the node's handle.
func ClusterTargetUnit(node string) []byte {
	return target("Slipway: the cluster works", []string{node})
}

// target wants what it stands for, and so shows it to who lists its dependencies; what does not run is not waited for, for
// the agent knows better than an order of starts does.
func target(description string, wants []string) []byte {
	var b strings.Builder
	b.WriteString(head + "[Unit]\nDescription=" + description + "\nStartLimitIntervalSec=0\n")
	for _, w := range wants {
		b.WriteString("Wants=" + w + "\nAfter=" + w + "\n")
	}
	return []byte(b.String())
}
