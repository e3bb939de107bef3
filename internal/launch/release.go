// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/slipway-project/slipway/internal/machine"
)

// release forgets a cluster of machines that exist, when it is none any more. Nothing is done to the machines: they are not
// slipway's, and what it has made on them each one takes away itself, when it is told to.
func (l *Launcher) release(ctx context.Context, name string, report func(Event)) error {
	unlock, err := l.lock(ctx, name, report)
	if err != nil {
		return err
	}
	defer unlock()
	machines, list, err := l.machinesOf(ctx, name)
	if err != nil {
		return err
	}
	var kept []string
	for _, m := range list {
		if why := belongs(ctx, machines, m); why != "" {
			kept = append(kept, fmt.Sprintf("  %s: %s", m.Name, why))
		}
	}
	if len(kept) > 0 {
		return fmt.Errorf("cluster %s consists of machines that slipway has not made, and it deletes none of them:\n%s\ntake them out first, workers before control planes: "+
			"slipway node remove NODE --name %s, then slipway node reset NODE --name %s; the last control plane with slipway node reset NODE --name %s --lost.\n"+
			"To forget the cluster on this computer only, and leave it running: remove %s",
			name, strings.Join(kept, "\n"), name, name, name, l.clusterDir(name))
	}
	if err := os.RemoveAll(l.clusterDir(name)); err != nil {
		return fmt.Errorf("remove the cluster's files: %w", err)
	}
	return nil
}

// belongs says why a machine may still be in the cluster; empty when it says itself that it is in none.
func belongs(ctx context.Context, machines provider, m machine.Status) string {
	if m.Unreachable != "" {
		return "nobody knows: " + m.Unreachable
	}
	limited, cancel := context.WithTimeout(ctx, agentPatience)
	defer cancel()
	agent, err := agentAt(machines.At(m.Name))
	if err != nil {
		return err.Error()
	}
	defer agent.Close()
	_, e, err := agent.Meet(limited)
	switch {
	case err != nil:
		return "nobody knows: its agent does not answer"
	case e.phase != freePhase:
		return fmt.Sprintf("it is %s (node %s)", e.phase, e.node)
	}
	return ""
}
