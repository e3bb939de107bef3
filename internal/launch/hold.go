// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// hold takes the cluster's lock unless up has it. It is let go while up only waits; whoever had it meanwhile may have taken the
// cluster down, or given it another spec, and then there is nothing left for this up to do.
func (u *up) hold(ctx context.Context) error {
	if u.unlock != nil {
		return nil
	}
	unlock, err := u.lock(ctx, u.cluster.Name, u.report)
	if err != nil {
		return err
	}
	u.unlock = unlock
	return u.stillOurs()
}

func (u *up) letGo() {
	if u.unlock != nil {
		u.unlock()
		u.unlock = nil
	}
}

// stillOurs is an error when the spec that this up has kept is not the cluster's any more.
func (u *up) stillOurs() error {
	if !u.kept {
		return nil
	}
	text, err := os.ReadFile(u.specFile(u.cluster.Name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("cluster %s was taken down meanwhile", u.cluster.Name)
	case err != nil:
		return fmt.Errorf("read the kept spec: %w", err)
	case !bytes.Equal(text, u.cluster.Spec):
		return fmt.Errorf("another slipway up has given cluster %s another spec meanwhile: see slipway status --name %s", u.cluster.Name, u.cluster.Name)
	}
	return nil
}
