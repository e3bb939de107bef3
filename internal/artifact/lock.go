// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/slipway-project/slipway/internal/durable"
)

// lock holds the store against other builders, in this process and in others. While it waits it calls waiting with what the
// holder is about. Readers need no lock.
func (s *Store) lock(ctx context.Context, about string, waiting func(holder string)) (unlock func(), err error) {
	note := fmt.Sprintf("process %d, which is %s", os.Getpid(), about)
	unlock, err = durable.LockFile(ctx, filepath.Join(s.root, "lock"), note, waiting)
	if err != nil {
		return nil, fmt.Errorf("lock store: %w", err)
	}
	return unlock, nil
}
