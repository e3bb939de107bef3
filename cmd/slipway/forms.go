// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/slipway-project/slipway/internal/launch"
)

// forms is the table of what slipway render can write, one row per form.
func forms() []launch.Form {
	return []launch.Form{}
}
