// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"testing"

	"go.uber.org/goleak"
)

// No test may leave a goroutine behind: each is one that a stranger could make.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
