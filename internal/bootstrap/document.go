// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"encoding/json"

	"github.com/slipway-project/slipway/internal/control"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/compose"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/planner"
)

// controlDocument is what the control plane on one node works from: the completed spec, the records of its machines and what they run.
func controlDocument(c config.Cluster, self string, records []admission.Node, have planner.Components) ([]byte, error) {
	if _, err := compose.AddOns(c, records); err != nil { // refuse here what the control plane would refuse
		return nil, invalid("%w", err)
	}
	return json.Marshal(control.Document{
		Version: control.Version, Cluster: c.Name, Self: self, Spec: config.Print(c), Components: have, Records: records,
	})
}
