// SPDX-License-Identifier: Apache-2.0

package etcdfake_test

import (
	"testing"

	"github.com/slipway-project/slipway/internal/etcd/etcdtest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	etcdtest.Conformance(t, func(*testing.T) etcdtest.Lab { return etcdtest.Fake() })
}
