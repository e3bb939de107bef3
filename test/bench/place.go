// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/slipway-project/slipway/internal/launch"
	"github.com/slipway-project/slipway/internal/machine"
)

// place is where the one machine of the cluster can be found, before it exists.
type place struct {
	node   string
	local  *machine.Local // for paths only
	name   string         // of the cluster
	cgroup cgroup
}

func placeOf(l *launch.Launcher, c launch.Cluster) (place, error) {
	var nodes []string
	for _, p := range c.Config.Pools {
		for _, n := range p.Nodes {
			nodes = append(nodes, n.Name)
		}
	}
	if len(nodes) != 1 {
		return place{}, fmt.Errorf("the spec has %d machines: bench measures one", len(nodes))
	}
	local, err := l.Machines("")
	if err != nil {
		return place{}, err
	}
	group, err := findCgroup(filepath.Join("slipway", c.Name, nodes[0]))
	if err != nil {
		return place{}, err
	}
	return place{node: nodes[0], local: local, name: c.Name, cgroup: group}, nil
}

func (p place) agentSocket() string {
	return filepath.Join(p.local.RunDir(p.name, p.node), "agent.sock")
}

func (p place) apiSocket() string { return filepath.Join(p.local.RunDir(p.name, p.node), "api.sock") }

// credential is allowed everything from the first moment, before RBAC knows anybody.
func (p place) credential() string {
	return filepath.Join(p.local.DataDir(p.name, p.node, "etc-kubernetes"), "super-admin.conf")
}

// step is how often everything is asked that cannot be watched.
const step = 25 * time.Millisecond

// poll calls ask until it returns true.
func poll(ctx context.Context, every time.Duration, ask func() bool) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for !ask() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	return nil
}
