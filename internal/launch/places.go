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

const placementSchema = 1

// placementFile stores where the user's units are, so that they stay there. If it is lost, they may move once.
func (l *Launcher) placementFile(cluster string) string {
	return filepath.Join(l.clusterDir(cluster), "placement.json")
}

// storedPlacement is nil for a cluster of which nothing is stored.
func (l *Launcher) storedPlacement(cluster string) (map[string][]string, error) {
	var before map[string][]string
	err := durable.Load(l.placementFile(cluster), placementSchema, &before)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read placement of units: %w: remove that file and its .prev to place them again", err)
	}
	return before, nil
}

// storePlacement writes nothing for a cluster that has no units and never had.
func (l *Launcher) storePlacement(c Cluster) error {
	placed := compose.Placed(c.Config)
	if len(placed) == 0 {
		if before, err := l.storedPlacement(c.Name); err == nil && before == nil {
			return nil
		}
	}
	if err := durable.Save(l.placementFile(c.Name), placementSchema, placed); err != nil {
		return fmt.Errorf("store placement of units: %w", err)
	}
	return nil
}

// unplaced describes the units that run nowhere.
func (c Cluster) unplaced() []string {
	var out []string
	for _, p := range compose.Placements(c.Config) {
		if len(p.Machines) == 0 {
			out = append(out, "unit "+p.Unit+" runs nowhere: "+p.Why)
		}
	}
	return out
}
