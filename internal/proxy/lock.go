// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/slipway-project/slipway/internal/durable"
)

// lock keeps two commands from starting two proxies for one cluster: the second waits, and finds the first one's. The file
// lies beside the proxy's folder, which Stop removes, and is never removed by this package.
func (c Config) lock(ctx context.Context) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(c.Dir), 0o700); err != nil {
		return nil, fmt.Errorf("lock API proxy: %w", err)
	}
	unlock, err = durable.LockFile(ctx, c.Dir+".lock", fmt.Sprintf("process %d", os.Getpid()), nil)
	if err != nil {
		return nil, fmt.Errorf("lock API proxy: %w", err)
	}
	return unlock, nil
}
