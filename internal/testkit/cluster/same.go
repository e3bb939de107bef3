// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-cmp/cmp"
)

// rememberWord: remember. It takes the picture that `expect same everything` compares with.
func (t *teller) rememberWord([]string) (err error) {
	t.picture, err = t.look()
	return err
}

// same everything: the cluster is the same as when the picture was taken, and all machines are ready.
func (t *teller) same([]string) error {
	for _, m := range t.order {
		if !m.ready() {
			return fmt.Errorf("%s is not ready: %s", m.name, m.says())
		}
	}
	now, err := t.look()
	if err != nil {
		return err
	}
	if diff := cmp.Diff(t.picture, now); diff != "" {
		return fmt.Errorf("the cluster has changed (-before +now):\n%s", diff)
	}
	return nil
}

// look returns everything in a cluster that must not change by itself: the states of the machines, the history of etcd's
// members, the records, the running processes, and each file of each machine with keys, certificates and plans.
func (t *teller) look() (map[string]string, error) {
	c, err := t.only()
	if err != nil {
		return nil, err
	}
	picture := map[string]string{"cluster": string(c.pin), "members": strings.Join(c.etcd.History(), "\n")}
	for _, kind := range []string{"nodes", "roster"} {
		items, err := c.store.List(context.Background(), kind)
		if err != nil {
			return nil, err
		}
		for _, item := range items {
			picture[kind+" "+item.Name] = item.Version + " " + string(item.Data)
		}
	}
	for _, m := range t.order {
		a := m.running()
		if a == nil {
			return nil, fmt.Errorf("%s has no agent: %s", m.name, m.says())
		}
		node := a.lock.State().Node
		m.mu.Lock()
		picture[m.name] = fmt.Sprintf("%s, etcd %q of data %s, API server %t, kubelet %t", a.lock.State(), m.etcd, c.etcd.Data(node), m.apiserver, m.kubelet)
		root := m.root
		m.mu.Unlock()
		if err := files(root, func(path, digest string) { picture[m.name+" "+path] = digest }); err != nil {
			return nil, err
		}
	}
	return picture, nil
}

// files calls tell for each file below root, except traces and previous versions.
func files(root string, tell func(path, digest string)) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		name := strings.TrimPrefix(path, root)
		if err != nil || d.IsDir() || strings.HasSuffix(name, "/trace.json") || strings.HasSuffix(name, ".prev") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		tell(name, fmt.Sprintf("%d bytes, %.6x", len(text), sha256.Sum256(text)))
		return nil
	})
}
