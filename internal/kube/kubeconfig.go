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

// MergeKubeconfig puts the current context of src into the kubeconfig dst, with its cluster and user, all three as name, and makes
// it the current one. Other entries stay as they are, comments do not, as with kubectl config; a context of that name for
// another cluster is an error. The file keeps its owner; as it holds an administrator's key now, nobody else may read it.
func MergeKubeconfig(ctx context.Context, dst, name string, src []byte) error {
	from, err := clientcmd.Load(src)
	if err != nil {
		return errors.New("read cluster's kubeconfig: it cannot be parsed") // the cause may quote a key
	}
	now, ok := from.Contexts[from.CurrentContext]
	if !ok {
		return fmt.Errorf("read cluster's kubeconfig: its current context %q is missing", from.CurrentContext)
	}
	cluster, user := from.Clusters[now.Cluster], from.AuthInfos[now.AuthInfo]
	if cluster == nil || user == nil {
		return fmt.Errorf("read cluster's kubeconfig: its context %q lacks the cluster or the user", from.CurrentContext)
	}
	return editKubeconfig(ctx, dst, func(to *api.Config) error {
		entry := api.NewContext()
		entry.Cluster, entry.AuthInfo, entry.Namespace = name, name, now.Namespace
		if there := to.Contexts[name]; there != nil {
			if there.Cluster != name {
				return fmt.Errorf("it has a context %s for another cluster %q: rename that first (kubectl config rename-context)", name, there.Cluster)
			}
			entry.Namespace = there.Namespace // the user's choice
		}
		to.Clusters[name], to.AuthInfos[name], to.Contexts[name] = cluster, user, entry
		to.CurrentContext = name
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
	if owner == nil {
		return nil
	}
	if err := os.Lchown(path, int(owner.Uid), int(owner.Gid)); err != nil {
		return fmt.Errorf("give kubeconfig back to its owner: %w", err)
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
