// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/spec"
	xfleet "github.com/slipway-project/slipway/internal/render/fleet"
)

// Imported is a spec made of units of another program.
type Imported struct {
	Spec  []byte
	Notes []string // what the units do without from now on
}

// ImportFleet reads units that were written for fleet. It reports the errors of all files at once. A spec that needs to be
// fixed is returned as well, with its problems as an Error of kind InvalidSpec.
func ImportFleet(cluster string, files []string) (Imported, error) {
	var out Imported
	var wrong []error
	var units []spec.Unit
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			wrong = append(wrong, fmt.Errorf("read unit: %w", err))
			continue
		}
		u, notes, err := xfleet.Decode(filepath.Clean(file), string(text))
		if err != nil {
			wrong = append(wrong, err)
			continue
		}
		out.Notes = append(out.Notes, notes...)
		units = append(units, u)
	}
	if len(wrong) > 0 {
		return Imported{}, errors.Join(wrong...)
	}
	out.Spec = config.PrintUnits(cluster, units)
	_, err := Complete("the imported spec", out.Spec, "")
	return out, err
}
