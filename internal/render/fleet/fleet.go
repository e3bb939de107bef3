// SPDX-License-Identifier: Apache-2.0

// Package fleet writes a plan as unit files for fleet, and reads such units back. Each component becomes kube-NAME@NODE.service, which
// runs where fleet's machine metadata has slipway-node=NODE; the user's own units keep their names and their rules. Files and
// programs are fetched by digest and checked before they are used; nothing is removed before its successor is there. The package
// touches no machine, and what fleet cannot say it leaves out with the reason or refuses.
//
// Read [Unit] and [With] first.
//
//	Unit{Name: "web", On: {"disk": ["ssd"]}}  ⇄  web.service: [X-Fleet] MachineMetadata=disk=ssd
package fleet

import (
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/slipway-project/slipway/internal/core/placement"
)

// Unit is a unit of the user's own: what both fleet and a spec can say.
type Unit struct {
	placement.Unit
	Exec        []string
	Env         map[string]string
	Dir         string
	Notify      bool              // it says READY=1
	Asks        map[string]string // fleet does not ask, but keeps them: http, tcp, file
	Facts       []string
	StopTimeout time.Duration
}

// Metadata that machines are started with, beside their labels: fleetd --metadata slipway-node=NODE,slipway-runs-etcd=true,….
const (
	metaNode = "slipway-node"
	metaRuns = "slipway-runs-" // and the name of a component
)

const (
	sectionFleet = "X-Fleet"
	sectionOwn   = "X-Slipway" // systemd and fleet leave it alone
	factsFile    = "/run/slipway/facts.env"
	storeFile    = "/etc/slipway/fleet.env" // where the machines fetch from: SLIPWAY_STORE=https://…
	prefix       = "kube-"
)

// components are what units can name beside each other.
func component(name string) bool {
	switch name {
	case "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "containerd", "api-balancer":
		return true
	}
	return false
}

func digest(content string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(content))) }
