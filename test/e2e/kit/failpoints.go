// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Failpoints builds slipway with failpoints: cmd/slipway/failpoint_on.go says which there are.
func Failpoints(t testing.TB) string {
	t.Helper()
	NeedRoot(t)
	binary := filepath.Join(t.TempDir(), "slipway")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-tags", "failpoints", "-o", binary, "./cmd/slipway")
	build.Dir, build.Env = Checkout(), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build slipway with failpoints: %v\n%s", err, out)
	}
	return binary
}

// ClockFile is what a clock is told to lie by, below /var/lib/slipway.
const ClockFile = "failpoint.clock"

// SetClock makes the clock of the machine's agent wrong by this, as "-48h"; "0h" sets it right. Other programs have the host's.
func (c *Cluster) SetClock(off string) {
	c.T.Helper()
	path := c.Data("slipway", ClockFile)
	if err := errors.Join(os.WriteFile(path+".test", []byte(off), 0o600), os.Rename(path+".test", path)); err != nil {
		c.T.Fatal(err)
	}
}
