// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/slipway-project/slipway/internal/durable"
)

// request is what this host remembers of an init, so that the same command again is the same request.
type request struct {
	ID      string `json:"id"`
	Address string `json:"address"` // of the init service
	Pin     string `json:"pin"`
	Node    string `json:"node"`
	Cluster string `json:"cluster,omitempty"` // id, when it is done
}

const requestSchema = 1

// recall reads what was begun. A cluster is made on one machine only.
func (r *remoteInit) recall() (known bool, err error) {
	err = durable.Load(r.file("init.json"), requestSchema, &r.req)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read what init was begun: %w", err)
	}
	if r.req.Address != r.address.String() || r.req.Pin != r.o.Pin {
		return false, fmt.Errorf("cluster %s was begun on the machine at %s with key %s: use that one, give the new cluster another --name, or remove %s",
			r.cluster.Name, r.req.Address, r.req.Pin, r.file(""))
	}
	return true, nil
}

// claim remembers a new request in the place of the one that recall has found. Of two commands that begin the same cluster at once
// only one begins: the other goes on with its request, or is refused when it means another machine.
func (r *remoteInit) claim(ctx context.Context, next request) error {
	before := r.req.ID
	if err := os.MkdirAll(r.file(""), 0o700); err != nil {
		return fmt.Errorf("keep what init was begun: %w", err)
	}
	unlock, err := durable.LockFile(ctx, r.file("lock"), fmt.Sprintf("process %d", os.Getpid()), nil)
	if err != nil {
		return fmt.Errorf("keep what init was begun: %w", err)
	}
	defer unlock()
	known, err := r.recall()
	if err != nil || known && r.req.ID != before {
		return err
	}
	r.req = next
	return r.remember()
}

// file is one of the remote cluster's files on this host. They are apart from those of local clusters.
func (r *remoteInit) file(name string) string {
	return filepath.Join(r.Root, "remote", r.cluster.Name, name)
}

func (r *remoteInit) remember() error {
	if err := os.MkdirAll(r.file(""), 0o700); err != nil {
		return fmt.Errorf("keep what init was begun: %w", err)
	}
	if err := durable.WriteFile(r.file("cluster.yaml"), 0o600, r.cluster.Spec); err != nil {
		return fmt.Errorf("keep spec: %w", err)
	}
	return durable.Save(r.file("init.json"), requestSchema, r.req)
}

// forget lets the next init be a new request.
func (r *remoteInit) forget() error {
	for _, name := range []string{"init.json.prev", "init.json"} {
		if err := os.Remove(r.file(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("forget init: %w", err)
		}
	}
	return durable.SyncDir(r.file(""))
}
