// SPDX-License-Identifier: Apache-2.0

package supervise

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/slipway-project/slipway/internal/core/plan"
)

// checkHolds refuses a start over lost data. What cannot be looked at counts as there to have been, and as not there now.
func checkHolds(h plan.Holds) error {
	if h.Mark == "" {
		return nil
	}
	if _, err := os.Stat(h.Mark); errors.Is(err, fs.ErrNotExist) {
		return nil // the first start: nothing has been there yet
	}
	if _, err := os.Stat(h.Data); err != nil {
		return fmt.Errorf("refused to start over lost data: %s says that there was some, but: %w: "+
			"bring it back (mount it, or restore it), or give the cluster up with slipway down", h.Mark, err)
	}
	return nil
}
