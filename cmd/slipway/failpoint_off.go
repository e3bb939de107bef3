// SPDX-License-Identifier: Apache-2.0

//go:build !failpoints

package main

import "github.com/slipway-project/slipway/internal/core/plan"

// failpoint: released programs have none.
func failpoint() func(n int, s plan.Step) { return nil }
