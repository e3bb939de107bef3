// SPDX-License-Identifier: Apache-2.0

package members

import (
	"context"
	"fmt"
)

// MayLeave tells, without changing anything, whether Leave would be refused as things are (ErrRefused). Having to wait for a turn
// is no refusal.
func (m *Manager) MayLeave(ctx context.Context, node string) error {
	if _, err := m.mayLeave(ctx, node); err != nil {
		return fmt.Errorf("take %s out of etcd: %w", node, err)
	}
	return nil
}
