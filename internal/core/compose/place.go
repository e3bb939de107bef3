// SPDX-License-Identifier: Apache-2.0

package compose

import (
	"slices"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/placement"
)

// Place decides where the user's units run. What before says, or else what the configuration itself says of earlier places, stays
// as it is while the rules allow.
func Place(c config.Cluster, before map[string][]string) config.Cluster {
	if before == nil {
		before = Placed(c)
	}
	units := make([]placement.Unit, 0, len(c.Units))
	for _, u := range c.Units {
		units = append(units, u.Unit.Unit)
	}
	d := placement.Decide(units, c.Machines(), before)
	c.Units = slices.Clone(c.Units)
	for i, u := range c.Units {
		c.Units[i].Placed, c.Units[i].Why = d.On[u.Name], ""
		for _, x := range d.Unplaced {
			if x.Unit == u.Name {
				c.Units[i].Why = x.Reason
			}
		}
	}
	return c
}

// Placed is where the units are.
func Placed(c config.Cluster) map[string][]string {
	out := map[string][]string{}
	for _, u := range c.Units {
		if len(u.Placed) > 0 {
			out[u.Name] = u.Placed
		}
	}
	return out
}
