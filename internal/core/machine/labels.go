// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"maps"

	"github.com/slipway-project/slipway/api/cluster/v1alpha1"
)

// Taint is a taint of a Node.
type Taint = v1alpha1.Taint

// LabelPool is the label with the name of a machine's pool, for placement.
const LabelPool = "slipway.dev/pool"

const (
	labelHostname = "kubernetes.io/hostname"
	labelRole     = "node-role.kubernetes.io/"
)

// NodeLabels returns the labels of a machine's Node: its pool's, its own, which win, and one for each role.
func NodeLabels(roles []string, pool, own map[string]string) map[string]string {
	out := make(map[string]string, len(pool)+len(own)+len(roles))
	maps.Copy(out, pool)
	maps.Copy(out, own)
	for _, role := range roles {
		out[labelRole+role] = ""
	}
	return out
}

// PlacementLabels returns the labels by which units choose a machine: its Node's, its name and its pool.
func PlacementLabels(name, pool string, node map[string]string) map[string]string {
	out := maps.Clone(node)
	out[labelHostname], out[LabelPool] = name, pool
	return out
}
