// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"encoding/json"
	"fmt"

	"github.com/slipway-project/slipway/internal/control"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/compose"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/planner"
)

// controlDocument is what the control plane on one node works from: the completed spec, the records of its machines and what they run.
func controlDocument(c config.Cluster, self string, records []admission.Node, have planner.Components) ([]byte, error) {
	doc := control.Document{Version: control.Version, Cluster: c.Name, Self: self, Spec: config.Print(c), Components: have, Records: records}
	if _, err := compose.AddOns(c, records); err != nil {
		return nil, invalid("%w", err)
	}
	if _, err := doc.Desired(); err != nil { // refuse here what the control plane would refuse, such as a spec that is too long once it is complete
		return nil, fmt.Errorf("check the control document of %s: %w", self, err)
	}
	return json.Marshal(doc)
}
