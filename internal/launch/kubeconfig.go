// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"

	"github.com/slipway-project/slipway/internal/core/catalog"
	"github.com/slipway-project/slipway/internal/durable"
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

// MergeKubeconfig puts the only cluster, user and context of a kubeconfig into the file at path under a name of their own
// and makes that context the current one. Everything else in the file stays; a file that cannot be understood is left alone.
func MergeKubeconfig(path, name string, kubeconfig []byte) error {
	path, err := resolved(path)
	if err != nil {
		return err
	}
	mine, err := parseKubeconfig(kubeconfig)
	if err != nil {
		return fmt.Errorf("merge kubeconfig: %w", err)
	}
	theirs := map[string]any{"apiVersion": "v1", "kind": "Config"}
	text, err := os.ReadFile(path)
	switch {
	case err == nil:
		if theirs, err = parseKubeconfig(text); err != nil {
			return fmt.Errorf("merge kubeconfig: %s: %w", path, err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("merge kubeconfig: %w", err)
	}
	for _, section := range []struct{ list, key string }{{"clusters", "cluster"}, {"users", "user"}, {"contexts", "context"}} {
		entry, err := only(mine, section.list, section.key)
		if err != nil {
			return err
		}
		if section.key == "context" {
			entry["cluster"], entry["user"] = name, name
		}
		if err := put(theirs, section.list, name, map[string]any{"name": name, section.key: entry}); err != nil {
			return fmt.Errorf("merge kubeconfig: %s: %w", path, err)
		}
	}
	theirs["current-context"] = name
	out, err := yaml.Marshal(theirs)
	if err != nil {
		return fmt.Errorf("merge kubeconfig: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("merge kubeconfig: %w", err)
	}
	return durable.WriteFile(path, 0o600, out)
}

// resolved follows symlinks, so that a linked kubeconfig stays a link.
func resolved(path string) (string, error) {
	target, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		return path, nil
	}
	if err != nil {
		return "", fmt.Errorf("merge kubeconfig: %w", err)
	}
	return target, nil
}

func parseKubeconfig(text []byte) (map[string]any, error) {
	doc := map[string]any{}
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	if doc == nil { // an empty file
		doc = map[string]any{}
	}
	if kind, ok := doc["kind"]; ok && kind != "Config" {
		return nil, fmt.Errorf("read kubeconfig: kind %v, want Config", kind)
	}
	doc["apiVersion"], doc["kind"] = "v1", "Config"
	return doc, nil
}

func only(doc map[string]any, list, key string) (map[string]any, error) {
	entries, _ := doc[list].([]any)
	if len(entries) == 1 {
		if entry, ok := entries[0].(map[string]any); ok {
			if value, ok := entry[key].(map[string]any); ok {
				return value, nil
			}
		}
	}
	return nil, fmt.Errorf("merge kubeconfig: the cluster's own has not exactly one of %s", list)
}

// put replaces the entry of that name, or appends it.
func put(doc map[string]any, list, name string, entry map[string]any) error {
	entries, ok := doc[list].([]any)
	if !ok && doc[list] != nil {
		return fmt.Errorf("%s is not a list", list)
	}
	for i := range entries {
		if old, ok := entries[i].(map[string]any); ok && old["name"] == name {
			entries[i] = entry
			return nil
		}
	}
	doc[list] = append(entries, any(entry))
	return nil
}
