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

// MergeKubeconfig copies the current context of src with its cluster and user into the kubeconfig dst, all three under the given
// name, and makes it the current context. It keeps other entries but not comments, like kubectl config. It is an error if dst has a
// context of that name for another cluster. The file keeps its owner and gets mode 0600, because it now contains an administrator's
// key.
func MergeKubeconfig(ctx context.Context, dst, name string, src []byte) error {
	from, err := clientcmd.Load(src)
	if err != nil {
		return errors.New("read cluster's kubeconfig: it cannot be parsed") // the cause may quote a key
	}
	current, ok := from.Contexts[from.CurrentContext]
	if !ok {
		return fmt.Errorf("read cluster's kubeconfig: its current context %q is missing", from.CurrentContext)
	}
	cluster, user := from.Clusters[current.Cluster], from.AuthInfos[current.AuthInfo]
	if cluster == nil || user == nil {
		return fmt.Errorf("read cluster's kubeconfig: the cluster or the user of its context %q is missing", from.CurrentContext)
	}
	return editKubeconfig(ctx, dst, func(to *api.Config) error {
		entry := api.NewContext()
		entry.Cluster, entry.AuthInfo, entry.Namespace = name, name, current.Namespace
		if existing := to.Contexts[name]; existing != nil {
			if existing.Cluster != name {
				return fmt.Errorf("its context %s is for another cluster %q: rename it first (kubectl config rename-context)", name, existing.Cluster)
			}
			entry.Namespace = existing.Namespace // the user may have set it
		}
		to.Clusters[name], to.AuthInfos[name], to.Contexts[name] = cluster, user, entry
		to.CurrentContext = name
		return nil
	})
}

// editKubeconfig changes a kubeconfig. It follows symbolic links, holds kubectl's lock, and keeps the owner of the file.
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
			return fmt.Errorf("edit kubeconfig: %s cannot be parsed and was not changed", path)
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
		return fmt.Errorf("restore owner of kubeconfig: %w", err)
	}
	return nil
}

// lockKubeconfig acquires kubectl's lock by creating a file. kubectl holds it for milliseconds; it waits for five seconds.
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
			return nil, fmt.Errorf("lock kubeconfig: %s exists: wait until kubectl exits, or remove the file if kubectl is not running", lock)
		}
	}
}
