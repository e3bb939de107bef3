// SPDX-License-Identifier: Apache-2.0

package units

import (
	"testing"
	"time"
)

func TestRestartDelay(t *testing.T) {
	t.Parallel()
	for n := range 100 {
		d := RestartDelay(n)
		low, high := 80*time.Millisecond, maxDelay
		if n > 0 {
			low = 80 * time.Millisecond << min(n-1, 7)
		}
		if d < low || d > high {
			t.Errorf("after %d crashes: got %s", n, d)
		}
	}
}
