// SPDX-License-Identifier: Apache-2.0

package registrytest_test

import (
	"testing"

	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/control/registry/registrytest"
)

func TestMemoryConformance(t *testing.T) {
	t.Parallel()
	registrytest.Conformance(t, func(*testing.T) registry.Store { return registrytest.NewMemory() })
}
