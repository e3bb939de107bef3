// SPDX-License-Identifier: Apache-2.0

// Package operate is what an operator does with a running cluster: status, waiting, nodes, tokens, certificates, logs, commands
// in machines, power and network of local machines, and access to the API; and, on a machine itself, its identity, its init
// secret and its request to join. It never creates a cluster or changes its spec; package bootstrap does.
//
// Every function is one command. Most take an inventory, which finds the cluster's machines. Read [Status], [Nodes] and
// [Access] first; [ClusterStatus] and [Node] are the main results.
package operate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/slipway-project/slipway/internal/clusterdir"
	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/inventory"
	"github.com/slipway-project/slipway/internal/provider"
)

// APIAccess is how a program on this host reaches a cluster's API.
type APIAccess struct {
	Kubeconfig string `json:"kubeconfig"` // path, 0600
	Server     string `json:"server"`     // of local machines https://127.0.0.1:port, where the API proxy listens
}

// Access makes the API of a cluster reachable, starting its proxy if that is needed, and writes the host's kubeconfig.
func Access(ctx context.Context, inv inventory.Inventory, cluster string) (APIAccess, error) {
	machines, err := inv.Open(ctx, cluster)
	if err != nil {
		return APIAccess{}, err
	}
	node, err := controlPlane(ctx, machines, cluster)
	if err != nil {
		return APIAccess{}, err
	}
	return AccessThrough(ctx, inv.Dir, machines, cluster, node)
}

// AccessThrough is Access by way of one control plane. If that does not have the administrator's kubeconfig yet, the error is
// [ErrNoKubeconfig], the proxy has been started, and the result is valid except that its Kubeconfig does not exist.
func AccessThrough(ctx context.Context, dir clusterdir.Dir, machines provider.Machines, cluster, node string) (APIAccess, error) {
	server, err := machines.Server(ctx, node)
	if err != nil {
		return APIAccess{}, err
	}
	a := APIAccess{Kubeconfig: dir.Kubeconfig(cluster), Server: server}
	text, err := machines.Host(node).Read(ctx, config.AdminConf)
	if errors.Is(err, fs.ErrNotExist) {
		return a, fmt.Errorf("cluster %s: %w: see slipway status --name %s", cluster, ErrNoKubeconfig, cluster)
	}
	if err != nil {
		return a, fmt.Errorf("read the admin kubeconfig: %w", err)
	}
	external, err := WithServer(string(text), a.Server)
	if err != nil {
		return a, err
	}
	if old, err := os.ReadFile(a.Kubeconfig); err == nil && string(old) == external {
		return a, nil
	}
	return a, durable.WriteFile(a.Kubeconfig, 0o600, []byte(external))
}

// ErrNoKubeconfig means that the control plane has not written the administrator's kubeconfig yet.
var ErrNoKubeconfig = errors.New("no admin kubeconfig yet")

// WithServer is the kubeconfig with another server. Slipway's agent wrote the file, with one "server:" line, so only that line
// has to change.
func WithServer(kubeconfig, server string) (string, error) {
	lines := strings.Split(kubeconfig, "\n")
	for i, line := range lines {
		if key, _, ok := strings.Cut(line, "server:"); ok && strings.TrimLeft(key, " -") == "" {
			lines[i] = key + "server: " + server
			return strings.Join(lines, "\n"), nil
		}
	}
	return "", errors.New("the admin kubeconfig has no server")
}

// controlPlane is the first running machine of a cluster that has the administrator's kubeconfig, or, while none has it, the
// first running machine.
func controlPlane(ctx context.Context, machines provider.Machines, cluster string) (string, error) {
	all, err := machines.List(ctx)
	if err != nil {
		return "", err
	}
	if len(all) == 0 {
		return "", fmt.Errorf("no cluster %q on this host: create it with slipway up --name %s, or list the existing ones with slipway list", cluster, cluster)
	}
	first := ""
	for _, m := range all {
		switch {
		case m.Running && provider.HasAdminConf(ctx, machines, m.Name):
			return m.Name, nil
		case m.Running && first == "":
			first = m.Name
		}
	}
	if first != "" {
		return first, nil
	}
	if all[0].Unreachable != "" {
		return "", provider.NotRunning(cluster, all[0])
	}
	return "", fmt.Errorf("cluster %s: machine %s is not running: start it with slipway up --name %s", cluster, all[0].Name, cluster)
}

// Kubectl returns the path of the kubectl that belongs to the cluster's release. It is taken from the component store, and
// verified, once per cluster and digest.
func Kubectl(ctx context.Context, dir clusterdir.Dir, cluster string) (string, error) {
	release := catalog.Default()
	if c, err := dir.Load(clusterdir.Source{Name: cluster}); err == nil {
		release = c.Release
	}
	have, _, err := dir.Components().Lookup(ctx, release)
	if err != nil {
		return "", err
	}
	blob, found := have.Binaries["kubectl"]
	if !found {
		return "", fmt.Errorf("find kubectl: Kubernetes %s is not in the component store: run slipway bundle build", release.Kubernetes)
	}
	path := dir.Path(cluster, "bin", "kubectl-"+blob.Digest.Hex()[:12])
	if info, err := os.Stat(path); err == nil && info.Size() == blob.Size {
		return path, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", fmt.Errorf("copy kubectl from the component store: %w", err)
	}
	store, err := dir.Components().Open()
	if err != nil {
		return "", err
	}
	return path, store.Take(ctx, blob.Digest, path, 0o755)
}
