// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/slipway-project/slipway/internal/core/compose"
	"github.com/slipway-project/slipway/internal/durable"
)

const placesSchema = 1

// placesFile remembers where the user's units are, so that they stay there. Lost, they may move once.
func (l *Launcher) placesFile(cluster string) string {
	return filepath.Join(l.clusterDir(cluster), "placement.json")
}

// placing decides again where the units run, with an eye to where they are.
func (l *Launcher) placing(c Cluster) (Cluster, error) {
	var before map[string][]string
	err := durable.Load(l.placesFile(c.Name), placesSchema, &before)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return c, nil
	case err != nil:
		return Cluster{}, fmt.Errorf("read where the units are: %w: remove that file and its .prev to have them placed anew", err)
	}
	c.Config = compose.Place(c.Config, before)
	return c, nil
}

// keepPlaces writes nothing for those who have no units and never had.
func (l *Launcher) keepPlaces(c Cluster) error {
	places := compose.Placed(c.Config)
	if len(places) == 0 {
		var before map[string][]string
		if err := durable.Load(l.placesFile(c.Name), placesSchema, &before); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	}
	if err := durable.Save(l.placesFile(c.Name), placesSchema, places); err != nil {
		return fmt.Errorf("keep where the units are: %w", err)
	}
	return nil
}

// Place is where one of the user's units runs, or why nowhere.
type Place struct {
	Unit     string   `json:"unit"`
	Machines []string `json:"machines"`
	Why      string   `json:"why,omitempty"` // when there is no machine
}

// Places tells where the spec's units run: where they are, for a cluster that is made, and where they would be.
func (c Cluster) Places() []Place {
	out := []Place{}
	for _, u := range c.Config.Units {
		out = append(out, Place{Unit: u.Name, Machines: append([]string{}, u.Placed...), Why: u.Why})
	}
	return out
}

// homeless are the units that run nowhere, in words.
func (c Cluster) homeless() []string {
	var out []string
	for _, p := range c.Places() {
		if len(p.Machines) == 0 {
			out = append(out, "unit "+p.Unit+" runs nowhere: "+p.Why)
		}
	}
	return out
}
