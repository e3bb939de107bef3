// SPDX-License-Identifier: Apache-2.0

// Package sweep_test kills the agent after each step of a boot, one boot per step: whatever was done until then, the next
// agent has to end in the same healthy cluster with the same authorities.
package sweep_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slipway-project/slipway/test/e2e/kit"
)

// stride is the distance between the steps that are tried: every one, unless SLIPWAY_SWEEP=N asks for every Nth, which is for
// who waits for a quick answer while working.
func stride(t *testing.T) int {
	t.Helper()
	text := os.Getenv("SLIPWAY_SWEEP")
	if text == "" {
		return 1
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("SLIPWAY_SWEEP=%s: want the distance between steps, 1 or more", text)
	}
	return n
}

func TestSweep(t *testing.T) {
	kit.NeedRoot(t)
	binary := filepath.Join(t.TempDir(), "slipway")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-tags", "failpoints", "-o", binary, "./cmd/slipway")
	build.Dir, build.Env = kit.Checkout(), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build slipway with failpoints: %v\n%s", err, out)
	}
	by := stride(t)
	var ran []int
	for n := 1; ; n += by {
		fired := true
		if !t.Run(fmt.Sprintf("step-%d", n), func(t *testing.T) { fired = crashAfter(t, binary, n) }) {
			t.Errorf("step %d failed; the sweep goes on", n)
		}
		if !fired {
			break
		}
		ran = append(ran, n)
		if n > 300 {
			t.Fatal("a boot has no 300 steps: the failpoint fires for ever")
		}
	}
	t.Logf("the agent was killed after steps %v", ran)
	if len(ran) < 40/by {
		t.Errorf("only %d boots: a boot has more steps than that, so the failpoint does not work", len(ran))
	}
}

// crashAfter boots a cluster whose agent dies right after its nth step. It reports whether the boot was that long.
func crashAfter(t *testing.T, binary string, n int) (fired bool) {
	c := kit.NewWith(t, "sweep", binary)
	failpoint := c.Data("slipway", "failpoint") // the machine's folder is made before the machine, for the agent must find it
	if err := errors.Join(os.MkdirAll(filepath.Dir(failpoint), 0o700), os.WriteFile(failpoint, fmt.Appendf(nil, "%d\n", n), 0o600)); err != nil {
		t.Fatal(err)
	}
	watch := watchKeys(c.Data("etc-kubernetes", "pki"))
	c.MustUp()
	for file, seen := range watch.end() {
		if len(seen) != 1 {
			t.Errorf("%s was made %d times", file, len(seen))
		}
	}
	_, err := os.Stat(failpoint)
	if fired = errors.Is(err, fs.ErrNotExist); !fired {
		return false
	}
	c.Healthy(time.Minute)
	for _, name := range kit.Components() {
		c.Process(name) // one, not two
	}
	if r := c.MustUp(); !strings.Contains(r.Out, "nothing to do") {
		t.Errorf("another up: %s", r)
	}
	return true
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
	for _, file := range []string{"ca.crt", "ca.key", "etcd/ca.crt", "etcd/ca.key", "front-proxy-ca.crt", "front-proxy-ca.key", "sa.key", "sa.pub", "encryption.key"} {
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
	for _, file := range []string{"ca.crt", "etcd/ca.crt", "front-proxy-ca.crt", "sa.key", "encryption.key"} {
		if w.seen[file] == nil {
			w.seen[file] = [][32]byte{}
		}
	}
	return w.seen
}
