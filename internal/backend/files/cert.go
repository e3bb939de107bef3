// SPDX-License-Identifier: Apache-2.0

package files

import (
	"context"
	"errors"
	"fmt"

	"github.com/slipway-project/slipway/internal/core/plan"
)

var errNoKeys = errors.New("this host has no custody of keys")

func (h *Host) observeCert(ctx context.Context, c plan.Cert) (plan.State, error) {
	if h.conf.Keys == nil {
		return plan.State{}, errNoKeys
	}
	ok, exists, detail, err := h.conf.Keys.Check(ctx, c.Want)
	switch {
	case err != nil:
		return plan.State{}, fmt.Errorf("check %s: %w", c.Want.Name, err)
	case !exists:
		return absent(), nil
	case !ok:
		return wrong(detail), nil
	}
	s := right()
	s.Detail = detail
	return s, nil
}

func (h *Host) makeCert(ctx context.Context, c plan.Cert) error {
	if h.conf.Keys == nil {
		return errNoKeys
	}
	if err := h.conf.Keys.Ensure(ctx, c.Want); err != nil {
		return fmt.Errorf("make %s: %w", c.Want.Name, err)
	}
	return nil
}
