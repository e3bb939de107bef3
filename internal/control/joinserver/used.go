// SPDX-License-Identifier: Apache-2.0

package joinserver

import (
	"sync"

	"github.com/slipway-project/slipway/internal/core/pin"
)

// maxUsed bounds the memory of certified keys: two certificates of some thousand nodes.
const maxUsed = 16384

// owner is what a key was certified for.
type owner struct {
	node pin.Pin // of the node's machine
	want string
}

// usedKeys remembers which keys this process has certified. It is a second fence and forgets at a restart: the first is that a
// requester must hold the key, and that a node's certificate holds nothing but the node's names.
type usedKeys struct {
	mu     sync.Mutex // guards the fields below
	owners map[pin.Pin]owner
	order  []pin.Pin // the oldest first
}

func newUsedKeys() *usedKeys { return &usedKeys{owners: map[pin.Pin]owner{}} }

// take notes the owner of a key, and reports false when it has another.
func (u *usedKeys) take(key pin.Pin, o owner) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if old, ok := u.owners[key]; ok {
		return old == o
	}
	if len(u.order) == maxUsed {
		delete(u.owners, u.order[0])
		u.order = u.order[1:]
	}
	u.owners[key] = o
	u.order = append(u.order, key)
	return true
}
