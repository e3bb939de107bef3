// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/core/compose"
	"github.com/slipway-project/slipway/internal/core/config"
)

// immutable refuses a spec that changes what a cluster cannot change once it exists.
func (u *up) immutable() error {
	text, err := os.ReadFile(u.specFile(u.cluster.Name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // a new cluster
	}
	if err != nil {
		return fmt.Errorf("read the kept spec: %w", err)
	}
	version, err := u.keptVersion(u.cluster.Name)
	if err != nil {
		return fmt.Errorf("read the kept version: %w", err)
	}
	old, err := complete(u.specFile(u.cluster.Name), text, Source{Name: u.cluster.Name, Version: version})
	if err != nil {
		return fmt.Errorf("read the kept spec: %w", err)
	}
	old.Config = keeping(old.Config, u.machines)
	u.gone = compose.Missing(old.Config, u.cluster.Config)
	if changes := immutableChanges(old.Config, u.cluster.Config); len(changes) > 0 {
		return &Error{InvalidSpec, fmt.Errorf("cluster %s exists, and this cannot be changed in it:\n  %s\nundo the change, or make a new cluster: slipway down --name %s",
			u.cluster.Name, strings.Join(changes, "\n  "), u.cluster.Name)}
	}
	return nil
}

// withAddresses returns the configuration with the addresses that this host assigns to its machines.
func withAddresses(c config.Cluster) config.Cluster {
	c.Pools = slices.Clone(c.Pools)
	for i, p := range c.Pools {
		c.Pools[i].Nodes = slices.Clone(p.Nodes)
		for j, n := range p.Nodes {
			c.Pools[i].Nodes[j].Address = address(n)
		}
	}
	return c
}

func address(n config.NodeName) netip.Addr {
	if n.Address.IsValid() {
		return n.Address
	}
	return usual(n.Index)
}

// immutableChanges lists what a running cluster with the old configuration cannot change.
func immutableChanges(old, now config.Cluster) []string {
	return compose.Immutable(withAddresses(old), withAddresses(now.Keeping(compose.Indexes(old))))
}
