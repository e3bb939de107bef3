// SPDX-License-Identifier: Apache-2.0

// Package systemd is the text of unit files: that of the agent, and those of a plan's units. It is pure: it never looks at a
// machine, never talks to systemd, and the same plan gives the same bytes.
//
// Names begin with "slipway-", so that no unit of the distribution (containerd.service, kubelet.service) is ever touched.
// Every unit lies in slipway.slice.
//
// Read [AgentService] first.
//
//	os.WriteFile("/etc/systemd/system/slipway-agent.service", systemd.AgentService("/usr/local/bin/slipway"), 0o644)
package systemd

// Names of what is not one of the plan's units.
const (
	AgentUnit = "slipway-agent.service"
	Slice     = "slipway.slice"
)

// AgentService is the text of the agent's own unit, the only one that is enabled: a boot starts the agent, and the agent
// decides about everything else. exe is the path of this program. A restart of the agent leaves all that it has started alone.
func AgentService(exe string) []byte {
	return []byte(`# Written by slipway.
[Unit]
Description=Slipway node agent
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart=` + quote(exe) + ` agent
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
