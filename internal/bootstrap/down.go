// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/slipway-project/slipway/internal/agentclient"
	"github.com/slipway-project/slipway/internal/inventory"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/provider"
	"github.com/slipway-project/slipway/internal/proxy"
	"github.com/slipway-project/slipway/internal/report"
)

// Down removes a cluster of local machines and everything that was made for it: processes, mounts, namespaces, cgroups, files.
// The component store is kept unless purge is set and no other cluster uses it. A cluster of existing machines is only
// forgotten, and only if no machine is in it any more.
func Down(ctx context.Context, inv inventory.Inventory, cluster string, purge bool, to report.Func) error {
	if remote, err := inv.IsRemote(cluster); err != nil || remote {
		return errors.Join(err, forgetRemote(ctx, inv, cluster, to))
	}
	machines, err := inv.Local(cluster, inv.Dir.Components().Runc(ctx))
	if err != nil {
		return err
	}
	unlock, err := inv.Dir.Lock(ctx, cluster, to)
	if err != nil {
		return err
	}
	defer unlock()
	if err := proxy.Stop(ctx, inv.Dir.Proxy(cluster)); err != nil {
		return fmt.Errorf("stop the API proxy: %w", err)
	}
	if err := machines.Local.Destroy(ctx, cluster); err != nil {
		return fmt.Errorf("remove the machines of %s: %w", cluster, err)
	}
	if err := inv.Dir.Forget(cluster); err != nil || !purge {
		return err
	}
	others, err := machines.Local.Clusters()
	if err != nil {
		return err
	}
	if len(others) > 0 {
		return fmt.Errorf("keep the component store: it is used by %s: remove these clusters first", strings.Join(others, ", "))
	}
	return inv.Dir.RemoveComponents()
}

// forgetRemote forgets a cluster of existing machines. The machines are not touched: each removes what Slipway has made on it
// when it is reset.
func forgetRemote(ctx context.Context, inv inventory.Inventory, cluster string, to report.Func) error {
	unlock, err := inv.Dir.Lock(ctx, cluster, to)
	if err != nil {
		return err
	}
	defer unlock()
	machines, list, err := inv.List(ctx, cluster)
	if err != nil {
		return err
	}
	var members []string
	for _, m := range list {
		if why := notFree(ctx, machines, m); why != "" {
			members = append(members, fmt.Sprintf("  %s: %s", m.Name, why))
		}
	}
	if len(members) > 0 {
		return fmt.Errorf("cluster %s consists of existing machines, which slipway does not delete:\n%s\nremove them first, workers before control planes: "+
			"slipway node remove NODE --name %s, then slipway node reset NODE --name %s; the last control plane with slipway node reset NODE --name %s --lost.\n"+
			"To forget the cluster on this computer only, and leave it running: remove %s",
			cluster, strings.Join(members, "\n"), cluster, cluster, cluster, inv.Dir.Path(cluster))
	}
	return inv.Dir.Forget(cluster)
}

// notFree says why a machine may still be in a cluster; empty if the machine says itself that it is in none.
func notFree(ctx context.Context, machines provider.Machines, m machine.Status) string {
	if m.Unreachable != "" {
		return "unknown: unreachable: " + m.Unreachable
	}
	limited, cancel := context.WithTimeout(ctx, agentclient.Patience)
	defer cancel()
	agent, err := agentclient.Dial(provider.Agent(machines.Host(m.Name)))
	if err != nil {
		return err.Error()
	}
	defer agent.Close()
	i, err := agent.Info(limited)
	switch {
	case err != nil:
		return "unknown: its agent does not answer"
	case i.Phase != lock.Free:
		return fmt.Sprintf("%s (node %s)", i.Phase, i.Node)
	}
	return ""
}
