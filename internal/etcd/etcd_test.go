// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"testing"

	"github.com/slipway-project/slipway/internal/etcd/etcdtest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	etcdtest.Conformance(t, func(t *testing.T) etcdtest.Lab { return etcdtest.Real(t) })
}
