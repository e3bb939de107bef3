// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"

	"github.com/slipway-project/slipway/internal/machine"
)

// Exec runs a program inside a machine, the first one if none is named, and returns its exit code.
func (l *Launcher) Exec(ctx context.Context, cluster, name string, c machine.Command) (exitCode int, err error) {
	local, list, err := l.machinesOf(ctx, cluster)
	if err != nil {
		return -1, err
	}
	m, err := pick(cluster, list, name)
	if err != nil {
		return -1, err
	}
	if !m.Running {
		return -1, notRunning(cluster, m.Name)
	}
	return local.Exec(ctx, cluster, m.Name, c)
}
