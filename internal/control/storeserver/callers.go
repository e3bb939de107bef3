// SPDX-License-Identifier: Apache-2.0

package storeserver

import (
	"context"
	"net"
	"os"
	"sync"

	"github.com/slipway-project/slipway/internal/durable"
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

// few closes connections of an address that has as many as it may have.
type few struct {
	net.Listener
	callers *callers
}

func (f *few) Accept() (net.Conn, error) {
	for {
		c, err := f.Listener.Accept()
		if err != nil {
			return nil, err
		}
		leave, ok := f.callers.enter(c.RemoteAddr().String())
		if !ok {
			_ = c.Close() // it has seven others
			continue
		}
		return &counted{Conn: c, leave: sync.OnceFunc(leave)}, nil
	}
}

// counted is a connection whose place is free again when it is closed.
type counted struct {
	net.Conn
	leave func()
}

func (c *counted) Close() error {
	c.leave()
	return c.Conn.Close()
}

// program is a file whose digest is found when somebody first asks for what is no blob.
type program struct {
	path string
	once sync.Once

	digest string // empty: it cannot be read
}

func (p *program) is(sum string) (path string, is bool) {
	p.once.Do(func() { p.digest, _ = DigestOf(context.Background(), p.path) }) // for all who come, not for this caller's time only
	return p.path, p.digest == "sha256:"+sum
}

// DigestOf is the digest of a file, by which a server hands it out.
func DigestOf(ctx context.Context, path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	digest, _, err := durable.Digest(ctx, f)
	return digest, err
}
