// SPDX-License-Identifier: Apache-2.0

// Package userdata is what a machine that nobody logs in to has to be told at its first boot so that it finds its cluster, gets this
// program and joins. It holds no secret: where the spec lets a machine take a silent one's place by its address, the same data serves
// for every machine that ever has that place. How a provisioner wants it written is in render/cloudinit and
// render/ignition.
//
// Read [Data] and [Data.Files].
package userdata

import (
	"errors"
	"fmt"
	"strings"
)

// Limit is the most that the data may have, in bytes, in any form: the smallest place that clouds leave is 4 KiB.
const Limit = 4096

// Data is what the machine has to know.
type Data struct {
	Cluster   string   // name, for people
	Node      string   // name, for people: the cluster's records decide
	Plan      string   // digest of the plan that the node had when this was made, for people
	Pin       string   // of the cluster's join CA
	Endpoints []string // join services, host:port
	Stores    []string // where this program is handed out, host:port
	Program   string   // its digest
	Agent     string   // text of the agent's unit
}

// File is one file of the machine.
type File struct {
	Path string
	Mode uint32
	Text string
}

// Paths and units on the machine.
const (
	Program = "/opt/slipway/bin/slipway"
	script  = "/opt/slipway/first-boot"
	units   = "/etc/systemd/system/"

	agentUnit = "slipway-agent.service"

	// JoinUnit is the unit that has to be enabled.
	JoinUnit = "slipway-join.service"
)

// Files are what the machine needs beside a distribution with systemd, curl and sha256sum.
func (d Data) Files() ([]File, error) {
	sum, ok := strings.CutPrefix(d.Program, "sha256:")
	switch {
	case !ok:
		return nil, fmt.Errorf("program %q: not a SHA-256 digest", d.Program)
	case d.Agent == "":
		return nil, errors.New("the text of the agent's unit must be known")
	case d.Pin == "" || len(d.Endpoints) == 0 || len(d.Stores) == 0:
		return nil, errors.New("the cluster's pin, its join services and its store servers must be known")
	}
	for _, word := range append(append([]string{d.Pin, sum}, d.Endpoints...), d.Stores...) {
		if strings.ContainsAny(word, " \t\n'\"\\$`;&|<>(){}*?!#~") {
			return nil, fmt.Errorf("%q cannot stand in a command", word)
		}
	}
	return []File{
		{script, 0o755, d.script(sum)},
		{units + agentUnit, 0o644, d.Agent},
		{units + JoinUnit, 0o644, joinUnit},
	}, nil
}

// script fetches the program by its digest, which is why the server's certificate need not be believed, and tells the agent where to
// join. The agent keeps that, so later boots of a machine that is in do nothing new.
func (d Data) script(sum string) string {
	return `#!/bin/sh
# Brings this machine into cluster ` + d.Cluster + `. It runs at each boot, and does what is left to do.
set -eu
bin=` + Program + ` sum=` + sum + `
if [ ! -x $bin ]; then
  mkdir -p ${bin%/*}
  for at in ` + strings.Join(d.Stores, " ") + `; do
    curl -fsSk --tlsv1.3 --connect-timeout 5 -o $bin.new https://$at/sha256/$sum || continue
    echo "$sum  $bin.new" | sha256sum -c --quiet || continue
    chmod 755 $bin.new
    sync
    mv $bin.new $bin
    break
  done
fi
systemctl enable --now ` + agentUnit + `
exec $bin join --known --pin ` + d.Pin + ` --endpoint ` + strings.Join(d.Endpoints, " --endpoint ") + `
`
}

const joinUnit = `[Unit]
Description=Slipway: bring this machine into its cluster
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=` + script + `
Restart=on-failure
RestartSec=5s

[Install]
WantedBy=multi-user.target
`

// Heading is what is said on top, line by line, for people who find the data in a console.
func (d Data) Heading() []string {
	return []string{
		"node " + d.Node + " of cluster " + d.Cluster + ", made by slipway render for plan " + d.Plan,
		"no secret is in here; make it anew when slipway on the control planes is another version",
	}
}

// Fit refuses what has become too large.
func Fit(text []byte) ([]byte, error) {
	if len(text) > Limit {
		return nil, fmt.Errorf("%d bytes are more than the %d that every provisioner takes", len(text), Limit)
	}
	return text, nil
}
