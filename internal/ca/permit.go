// SPDX-License-Identifier: Apache-2.0

package ca

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/slipway-project/slipway/internal/core/pki"
)

// permitted refuses to make what a cluster has once, unless this machine is the one that makes the cluster. That something is
// not there is no reason to make it: it may be lost, or on its way.
func permitted(w pki.Want) error {
	if w.Permit == "" {
		return nil
	}
	_, err := os.Stat(w.Permit)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s is not on this machine, and only init may make it: restore it from a backup or from another control-plane machine, "+
			"or take this machine out of the cluster (slipway node remove, slipway node reset) and let it join again", w.KeyPath)
	}
	return fmt.Errorf("look for the permit to make it: %w", err)
}
