// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"testing"

	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/control/registry/registrytest"
)

// The store passes the suite with the rights of the control role, and with no others.
func TestRecordStoreConformance(t *testing.T) {
	t.Parallel()
	s := sharedServer(t)
	if _, err := s.client(t, "super-admin").Apply(t.Context(), clusterAddOns(t)[:1], nil); err != nil {
		t.Fatal(err)
	}
	registrytest.Conformance(t, func(t *testing.T) registry.Store { return s.client(t, "control").Records() })
}
