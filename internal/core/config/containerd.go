// SPDX-License-Identifier: Apache-2.0

package config

// containerd: its configuration file is TOML and is written by the planner.
func containerd() defaults {
	return defaults{env: smallHeap(), flags: []setting{
		{"config", ContainerdFile, std("")},
		{"log-level", "warn", std("")},
	}}
}
