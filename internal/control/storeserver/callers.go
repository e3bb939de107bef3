// SPDX-License-Identifier: Apache-2.0

package storeserver

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net"
	"os"
	"sync"
)

// callers counts what is under way for each address.
type callers struct {
	most int
	mu   sync.Mutex
	now  map[string]int
}

func (c *callers) enter(remote string) (leave func(), ok bool) {
	from, _, err := net.SplitHostPort(remote)
	if err != nil {
		return nil, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now[from] >= c.most {
		return nil, false
	}
	c.now[from]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.now[from]--; c.now[from] <= 0 {
			delete(c.now, from)
		}
	}, true
}

// program is a file whose digest is found when somebody first asks for what is no blob.
type program struct {
	path string
	once sync.Once
	sum  string // empty: it cannot be read
}

func (p *program) is(sum string) (path string, is bool) {
	p.once.Do(func() {
		f, err := os.Open(p.path)
		if err != nil {
			return
		}
		defer f.Close()
		h := sha256.New()
		if _, err := io.Copy(h, f); err == nil {
			p.sum = hex.EncodeToString(h.Sum(nil))
		}
	})
	return p.path, p.sum != "" && p.sum == sum
}
