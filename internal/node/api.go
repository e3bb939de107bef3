// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/url"

	"github.com/slipway-project/slipway/internal/core/plan"
)

// APIAddress is host:port of the API server that this node's own kubeconfigs name, or otherwise while there is no plan.
func (a *Agent) APIAddress(otherwise string) string {
	for _, e := range a.current().Want.Entries {
		k, ok := e.Item.(plan.Kubeconfig)
		if !ok {
			continue
		}
		if u, err := url.Parse(k.Server); err == nil && u.Port() != "" {
			return u.Host
		}
	}
	return otherwise
}
