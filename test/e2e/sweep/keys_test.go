// SPDX-License-Identifier: Apache-2.0

package sweep_test

import (
	"crypto/sha256"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// onceMade are what a cluster has once, below /etc/kubernetes/pki.
var onceMade = []string{
	"ca.crt", "ca.key", "etcd/ca.crt", "etcd/ca.key", "front-proxy-ca.crt", "front-proxy-ca.key", "join-ca.crt", "join-ca.key", "sa.key", "sa.pub",
	"encryption.key",
}

// keyWatch remembers every content that the files had which must be made only once.
type keyWatch struct {
	stop, done chan struct{}

	mu   sync.Mutex // guards the field below
	seen map[string][][32]byte
}

func watchKeys(folder string) *keyWatch {
	w := &keyWatch{stop: make(chan struct{}), done: make(chan struct{}), seen: map[string][][32]byte{}}
	go func() {
		defer close(w.done)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			w.look(folder)
			select {
			case <-w.stop:
				w.look(folder)
				return
			case <-tick.C:
			}
		}
	}()
	return w
}

func (w *keyWatch) look(folder string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, file := range onceMade {
		text, err := os.ReadFile(filepath.Join(folder, file)) // a file appears whole: it is written elsewhere and renamed
		if sum := sha256.Sum256(text); err == nil && !slices.Contains(w.seen[file], sum) {
			w.seen[file] = append(w.seen[file], sum)
		}
	}
}

// end returns the contents of each file; a file that never appeared has none.
func (w *keyWatch) end() map[string][][32]byte {
	close(w.stop)
	<-w.done
	for _, file := range onceMade {
		if w.seen[file] == nil {
			w.seen[file] = [][32]byte{}
		}
	}
	return w.seen
}
