// SPDX-License-Identifier: Apache-2.0

// Package clusterdir is Slipway's state directory on the operator's host: which clusters there are, the stored spec and version
// of each, and where everything else that is kept for a cluster is located. It reads and writes files; it never talks to a
// machine.
//
// Read [Dir] and [Dir.Load] first.
package clusterdir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/slipway-project/slipway/internal/bundle"
	"github.com/slipway-project/slipway/internal/machine"
	"github.com/slipway-project/slipway/internal/proxy"
	"github.com/slipway-project/slipway/internal/report"
)

// Dir is the state directory. It need not exist; only methods that write create it.
type Dir struct {
	Root string // such as /var/lib/slipway
}

// Path is a file or directory that is kept for a cluster; without elem it is the cluster's own directory.
func (d Dir) Path(cluster string, elem ...string) string {
	return filepath.Join(append([]string{d.Root, "clusters", cluster}, elem...)...)
}

// Spec is the path of a cluster's stored spec.
func (d Dir) Spec(cluster string) string { return d.Path(cluster, "cluster.yaml") }

// Kubeconfig is the path of the administrator's kubeconfig for use on this host.
func (d Dir) Kubeconfig(cluster string) string { return d.Path(cluster, "kubeconfig") }

// Proxy is the configuration of a cluster's API proxy, without the sockets that it forwards to.
func (d Dir) Proxy(cluster string) proxy.Config { return proxy.Config{Dir: d.Path(cluster, "proxy")} }

// Remote is a file kept for a cluster that slipway init created on a machine elsewhere; without elem it is the directory of
// these files. They are apart from those of local clusters.
func (d Dir) Remote(cluster string, elem ...string) string {
	return filepath.Join(append([]string{d.Root, "remote", cluster}, elem...)...)
}

// HasLocalMachines reports whether a cluster has machines that Slipway runs on this host.
func (d Dir) HasLocalMachines(cluster string) bool {
	_, err := os.Stat(filepath.Join(d.Root, "machines", cluster))
	return !errors.Is(err, fs.ErrNotExist)
}

// Components is the component store.
func (d Dir) Components() bundle.Store { return bundle.Store{Dir: filepath.Join(d.Root, "store")} }

// RemoveComponents removes the component store, and the directory of clusters if it is empty.
func (d Dir) RemoveComponents() error {
	_ = os.Remove(filepath.Join(d.Root, "clusters")) // fails while there is a cluster
	return os.RemoveAll(d.Components().Dir)
}

// ErrNoCluster means that this host has no cluster of that name.
var ErrNoCluster = errors.New("no such cluster")

// Clusters lists the clusters of this host by name: those with a stored spec and those with machines.
func (d Dir) Clusters() ([]string, error) {
	var names []string
	for _, sub := range []string{"clusters", "machines"} {
		entries, err := os.ReadDir(filepath.Join(d.Root, sub))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("list clusters: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
				names = append(names, e.Name())
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Check fails with [ErrNoCluster], and names the clusters that exist, unless the cluster exists.
func (d Dir) Check(cluster string) error {
	names, err := d.Clusters()
	if err != nil || slices.Contains(names, cluster) {
		return err
	}
	hint := "create it with slipway up"
	if cluster != "dev" {
		hint += " --name " + cluster
	}
	if len(names) > 0 {
		hint = "existing clusters: " + strings.Join(names, ", ") + "; " + hint
	}
	return fmt.Errorf("cluster %q: %w (%s)", cluster, ErrNoCluster, hint)
}

// Lock takes the lock of a cluster on this host, and reports the holder while it waits.
func (d Dir) Lock(ctx context.Context, cluster string, to report.Func) (unlock func(), err error) {
	local, err := machine.New(machine.Config{Root: d.Root})
	if err != nil {
		return nil, err
	}
	return local.Lock(ctx, cluster, func(holder string) {
		if to != nil {
			to(report.Event{Stage: report.StageMachine, Phase: "wait", Text: "waiting for another slipway that is working on this cluster: " + holder})
		}
	})
}

// Forget removes everything that is kept for a cluster. Its machines are not touched.
func (d Dir) Forget(cluster string) error {
	if err := os.RemoveAll(d.Path(cluster)); err != nil {
		return fmt.Errorf("remove the cluster's files: %w", err)
	}
	return nil
}
