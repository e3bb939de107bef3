// SPDX-License-Identifier: Apache-2.0

package units

import (
	"math/rand/v2"
	"time"
)

const (
	firstDelay = 100 * time.Millisecond
	maxDelay   = 30 * time.Second
)

// SoundAfter is how long a unit must have been well, so that its next death counts as the first.
const SoundAfter = 10 * time.Second

// RestartDelay doubles with each death in a row. The jitter keeps units that die of one cause from coming back as one.
func RestartDelay(crashes int) time.Duration {
	d := maxDelay
	if crashes < 9 {
		d = min(firstDelay<<crashes, maxDelay)
	}
	return d - time.Duration(rand.Int64N(int64(d)/5))
}
