// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/slipway-project/slipway/internal/durable"
)

// Names in a user's kubeconfig. What carries the prefix is ours; everything else is left alone.
const (
	entryPrefix   = "slipway-"
	contextPrefix = "admin@"
)

// MergeKubeconfig puts the current context of src into the kubeconfig dst as "admin@CLUSTER" and makes it the current one. Other
// entries stay as they are; a context of that name that is not ours is an error. dst is made, mode 0600, where it is missing.
func MergeKubeconfig(ctx context.Context, dst string, src []byte) (contextName string, err error) {
	from, err := clientcmd.Load(src)
	if err != nil {
		return "", errors.New("read cluster's kubeconfig: it cannot be parsed") // the cause may quote a key
	}
	now, ok := from.Contexts[from.CurrentContext]
	if !ok {
		return "", fmt.Errorf("read cluster's kubeconfig: its current context %q is missing", from.CurrentContext)
	}
	cluster, user := from.Clusters[now.Cluster], from.AuthInfos[now.AuthInfo]
	if cluster == nil || user == nil {
		return "", fmt.Errorf("read cluster's kubeconfig: its context %q lacks the cluster or the user", from.CurrentContext)
	}
	entry, contextName := entryPrefix+now.Cluster, contextPrefix+now.Cluster
	err = editKubeconfig(ctx, dst, func(to *api.Config) error {
		if there := to.Contexts[contextName]; there != nil && there.Cluster != entry {
			return fmt.Errorf("it has a context %s for another cluster %q: rename that first (kubectl config rename-context)", contextName, there.Cluster)
		}
		entryOf := api.NewContext()
		entryOf.Cluster, entryOf.AuthInfo = entry, entry
		if there := to.Contexts[contextName]; there != nil {
			entryOf.Namespace = there.Namespace // the user's choice
		}
		to.Clusters[entry], to.AuthInfos[entry], to.Contexts[contextName] = cluster, user, entryOf
		to.CurrentContext = contextName
		return nil
	})
	return contextName, err
}

// UnmergeKubeconfig takes out of dst what MergeKubeconfig put in for the cluster, and nothing else.
func UnmergeKubeconfig(ctx context.Context, dst, cluster string) error {
	if _, err := os.Stat(dst); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	entry, contextName := entryPrefix+cluster, contextPrefix+cluster
	return editKubeconfig(ctx, dst, func(c *api.Config) error {
		if there := c.Contexts[contextName]; there != nil && there.Cluster == entry {
			delete(c.Contexts, contextName)
			if c.CurrentContext == contextName {
				c.CurrentContext = ""
			}
		}
		delete(c.Clusters, entry)
		delete(c.AuthInfos, entry)
		return nil
	})
}

// editKubeconfig changes the file behind links, under the lock that kubectl uses too, and keeps its owner.
func editKubeconfig(ctx context.Context, path string, edit func(*api.Config) error) (err error) {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("edit kubeconfig: %w", err)
	}
	unlock, err := lockKubeconfig(ctx, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()

	conf, owner := api.NewConfig(), (*syscall.Stat_t)(nil)
	switch info, err := os.Stat(path); {
	case err == nil:
		owner, _ = info.Sys().(*syscall.Stat_t)
		data, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("edit kubeconfig: %w", err)
		}
		if conf, err = clientcmd.Load(data); err != nil {
			return fmt.Errorf("edit kubeconfig: %s cannot be parsed; it stays as it is", path)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("edit kubeconfig: %w", err)
	}
	if err := edit(conf); err != nil {
		return fmt.Errorf("edit kubeconfig %s: %w", path, err)
	}
	data, err := clientcmd.Write(*conf)
	if err != nil {
		return errors.New("edit kubeconfig: encode")
	}
	if err := durable.WriteFile(path, 0o600, data); err != nil {
		return fmt.Errorf("edit kubeconfig: %w", err)
	}
	if owner != nil && int(owner.Uid) != os.Geteuid() {
		return os.Chown(path, int(owner.Uid), int(owner.Gid))
	}
	return nil
}

// lockKubeconfig takes kubectl's lock, a file that must not exist. kubectl holds it for milliseconds.
func lockKubeconfig(ctx context.Context, path string) (unlock func() error, err error) {
	lock := path + ".lock"
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var pace backoff
	for {
		f, err := os.OpenFile(lock, os.O_CREATE|os.O_EXCL, 0)
		if err == nil {
			return func() error { return errors.Join(f.Close(), os.Remove(lock)) }, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("lock kubeconfig: %w", err)
		}
		if pace.pause(ctx) != nil {
			return nil, fmt.Errorf("lock kubeconfig: %s exists: wait until kubectl has ended, or remove it if none runs", lock)
		}
	}
}
