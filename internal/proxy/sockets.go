// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"

	"github.com/slipway-project/slipway/internal/durable"
)

// socketsRecord is what a running proxy is told: control planes come and go, and its port stays.
type socketsRecord struct{ Sockets []string }

func (c Config) socketsFile() string { return filepath.Join(c.Dir, "sockets.json") }

func (c Config) loadSockets() ([]string, error) {
	var r socketsRecord
	if err := durable.Load(c.socketsFile(), recordSchema, &r); err != nil {
		return nil, fmt.Errorf("read proxy sockets: %w", err)
	}
	return r.Sockets, nil
}

// saveSockets tells a proxy, running or to be started, where to go. A damaged record is replaced: what it said is known
// anew.
func (c Config) saveSockets() error {
	if len(c.Sockets) == 0 {
		return errors.New("start API proxy: no control plane to pass connections on to")
	}
	have, err := c.loadSockets()
	if err == nil && slices.Equal(have, c.Sockets) {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, durable.ErrDamaged) {
		return err
	}
	return durable.Save(c.socketsFile(), recordSchema, socketsRecord{c.Sockets})
}

// follow is the list as it is at each call; what cannot be read changes nothing.
func (c Config) follow() func() []string {
	var mu sync.Mutex // guards last
	var last []string
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		if list, err := c.loadSockets(); err == nil && len(list) > 0 {
			last = list
		}
		return slices.Clone(last)
	}
}
