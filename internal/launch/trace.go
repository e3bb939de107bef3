// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"

	"github.com/slipway-project/slipway/internal/trace"
)

// Trace asks a machine's agent, the first one's if none is named, for the spans of its last convergence.
func (l *Launcher) Trace(ctx context.Context, cluster, name string) ([]trace.Span, error) {
	machines, list, err := l.machinesOf(ctx, cluster)
	if err != nil {
		return nil, err
	}
	m, err := pick(cluster, list, name)
	if err != nil {
		return nil, err
	}
	if !m.Running {
		return nil, notRunning(cluster, m)
	}
	ctx, cancel := context.WithTimeout(ctx, agentPatience)
	defer cancel()
	agent, err := agentAt(machines.At(m.Name))
	if err != nil {
		return nil, err
	}
	defer agent.Close()
	return agent.Trace(ctx)
}
