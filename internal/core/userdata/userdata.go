// SPDX-License-Identifier: Apache-2.0

// Package userdata is the user data with which a blank machine, at its first boot, finds its cluster, downloads this program
// and joins. It contains no secret: where the spec lets a machine replace an unreachable one by its address, every machine
// with that address uses the same data. The formats of provisioners are in render/cloudinit and render/ignition.
//
// Read [Data] and [Data.Files] first.
package userdata

import (
	"errors"
	"fmt"
	"strings"

	"github.com/slipway-project/slipway/internal/core/pin"
)

// Limit is the maximum size of the data in bytes, in every format: the smallest limit of a cloud is 4 KiB.
const Limit = 4096

// Data is what the machine needs to know.
type Data struct {
	Cluster   string   // name, for people
	Node      string   // name, for people; the cluster's records decide
	Plan      string   // digest of the node's plan at the time of rendering, for people
	Pin       pin.Pin  // of the cluster's join CA
	Endpoints []string // join services, host:port
	Stores    []string // servers of this program, host:port
	Program   string   // its digest
	Agent     string   // content of the agent's unit file
}

// File is one file on the machine.
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

	// JoinUnit is the unit that must be enabled.
	JoinUnit = "slipway-join.service"
)

// Files returns the files that the machine needs in addition to a distribution with systemd, curl and sha256sum.
func (d Data) Files() ([]File, error) {
	sum, ok := strings.CutPrefix(d.Program, "sha256:")
	switch {
	case !ok:
		return nil, fmt.Errorf("program %q: not a SHA-256 digest", d.Program)
	case d.Agent == "":
		return nil, errors.New("no unit file of the agent")
	case d.Pin == "" || len(d.Endpoints) == 0 || len(d.Stores) == 0:
		return nil, errors.New("no pin of the cluster, no join services, or no store servers")
	}
	for _, word := range append(append([]string{string(d.Pin), sum}, d.Endpoints...), d.Stores...) {
		if strings.ContainsAny(word, " \t\n'\"\\$`;&|<>(){}*?!#~") {
			return nil, fmt.Errorf("%q cannot be part of a command", word)
		}
	}
	return []File{
		{script, 0o755, d.script(sum)},
		{units + agentUnit, 0o644, d.Agent},
		{units + JoinUnit, 0o644, joinUnit},
	}, nil
}

// script downloads the program by its digest, so that the server's certificate need not be trusted, and tells the agent which
// cluster to join. The agent stores that, so later boots of a joined machine change nothing.
func (d Data) script(sum string) string {
	return `#!/bin/sh
# Joins this machine to cluster ` + d.Cluster + `. Runs at each boot and does what is left to do.
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
exec $bin join --known --pin ` + string(d.Pin) + ` --endpoint ` + strings.Join(d.Endpoints, " --endpoint ") + `
`
}

const joinUnit = `[Unit]
Description=Slipway: join this machine to its cluster
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

// Heading returns comment lines for people who find the data in a console.
func (d Data) Heading() []string {
	return []string{
		"node " + d.Node + " of cluster " + d.Cluster + ", made by slipway render for plan " + d.Plan,
		"contains no secret; render it again after an upgrade of slipway on the control planes",
	}
}

// Fit returns the text, or an error if it is larger than [Limit].
func Fit(text []byte) ([]byte, error) {
	if len(text) > Limit {
		return nil, fmt.Errorf("%d bytes exceed the limit of %d that every provisioner accepts", len(text), Limit)
	}
	return text, nil
}
