// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/slipway-project/slipway/internal/core/catalog"
)

// Kubectl is the path of the kubectl that belongs to the cluster's release. It is taken out of the store, and checked, once
// per cluster and digest.
func (l *Launcher) Kubectl(ctx context.Context, cluster string) (string, error) {
	release := catalog.Default()
	if c, err := l.Load(Source{Name: cluster}); err == nil {
		release = c.Release
	}
	have, _, err := l.inStore(ctx, release)
	if err != nil {
		return "", err
	}
	blob, found := have.Binaries["kubectl"]
	if !found {
		return "", fmt.Errorf("find kubectl: Kubernetes %s is not in the component store: run slipway bundle build", release.Kubernetes)
	}
	path := filepath.Join(l.clusterDir(cluster), "bin", "kubectl-"+blob.Digest.Hex()[:12])
	if info, err := os.Stat(path); err == nil && info.Size() == blob.Size {
		return path, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", fmt.Errorf("take kubectl: %w", err)
	}
	store, err := l.Store()
	if err != nil {
		return "", err
	}
	return path, store.Take(ctx, blob.Digest, path, 0o755)
}
