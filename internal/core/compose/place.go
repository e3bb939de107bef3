// SPDX-License-Identifier: Apache-2.0

package compose

import (
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/placement"
)

// Place decides where the units run. A unit stays where before says, or else where the configuration says, as long as the
// rules allow.
func Place(c config.Cluster, before map[string][]string) config.Cluster {
	if before == nil {
		before = Placed(c)
	}
	return c.WithPlacement(placement.Decide(c.Units, c.Machines(), before))
}

// Placed returns the machines of each unit that runs, by its name.
func Placed(c config.Cluster) map[string][]string {
	out := map[string][]string{}
	for _, u := range c.Units {
		if len(u.Placed) > 0 {
			out[u.Name] = u.Placed
		}
	}
	return out
}

// Placement is where a unit runs, or why it runs nowhere.
type Placement struct {
	Unit     string   `json:"unit"`
	Machines []string `json:"machines"`
	Why      string   `json:"why,omitempty"` // if there is no machine
}

// Placements lists where the units run: where they are, for a running cluster, and where they would be for another.
func Placements(c config.Cluster) []Placement {
	out := []Placement{}
	for _, u := range c.Units {
		out = append(out, Placement{Unit: u.Name, Machines: append([]string{}, u.Placed...), Why: c.Unplaced[u.Name]})
	}
	return out
}
