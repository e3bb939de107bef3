// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/planner"
	"github.com/slipway-project/slipway/internal/launch"
)

const thousandSpec = `apiVersion: slipway.dev/v1alpha1
kind: Cluster
metadata: {name: thousand}
spec:
  networking: {podCIDR: 10.244.0.0/14}
  pools:
  - {name: main, roles: [control-plane, worker], count: 3}
  - {name: work, roles: [worker], count: 997}
`

// thousand completes and prints a spec of 1 000 machines and plans every one of them: the median of five times, in seconds,
// on one core.
func thousand() (float64, error) {
	var times []float64
	for range 5 {
		begun := time.Now()
		if err := planThousand(); err != nil {
			return 0, fmt.Errorf("plan 1 000 machines: %w", err)
		}
		times = append(times, time.Since(begun).Seconds())
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}

func planThousand() error {
	cluster, err := launch.Complete("thousand.yaml", []byte(thousandSpec), "")
	if err != nil {
		return err
	}
	config.Print(cluster.Config)
	components := digests(cluster.Release)
	address := netip.MustParseAddr("10.89.0.10")
	for _, pool := range cluster.Config.Pools {
		for _, n := range pool.Nodes {
			node, err := config.ForNode(cluster.Config, n.Name, config.Facts{Address: address, OOMScoreAdj: true})
			if err != nil {
				return err
			}
			node.Pool = cluster.Config.Pools[0] // all roles on every machine: the most that a plan can hold
			if _, err := planner.For(node, components); err != nil {
				return err
			}
			address = address.Next()
		}
	}
	return nil
}

// digests are made up: plans differ in nothing but their text.
func digests(r catalog.Release) planner.Components {
	const digest = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
	out := planner.Components{}
	for _, c := range r.Components {
		for _, b := range c.Binaries {
			out[b.Name] = digest
		}
	}
	for _, i := range r.Images() {
		out[i.Name] = digest
	}
	return out
}
