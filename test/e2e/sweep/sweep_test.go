// SPDX-License-Identifier: Apache-2.0

// Package sweep_test crashes agents and whole machines wherever a crash may divide two things: at every step and every named phase
// of the making of a cluster, of a worker's and of a control plane's way in, and on the side that serves them. Whatever was done
// until then, the end is the same: one cluster, the same authorities, the same members, all ready.
//
// The phases are not listed here: a machine without crashes tells what it passes, and each of that is tried. In one boot there are
// several crashes that lie far apart, since a boot for each took more than eight minutes; how many is [perBoot], and
// SLIPWAY_SWEEP=alone gives each a boot of its own. A crash that does not come, because an earlier one had already brought the
// machine past it, is tried alone.
package sweep_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/node/initserver"
	"github.com/slipway-project/slipway/test/e2e/kit"
)

// perBoot is how many crashes a boot bears. initserver gives a request up after 20.
const perBoot = 6

// soon is far more than anything here takes.
const soon = time.Minute

// together is how many crashes share a boot.
func together() int {
	if os.Getenv("SLIPWAY_SWEEP") == "alone" {
		return 1
	}
	return perBoot
}

func TestInit(t *testing.T) {
	binary := kit.Failpoints(t)
	kit.Host(t)
	first := boot(t, binary, "sweep", nil)
	var all []crash
	steps := 0
	for _, phase := range first.passed {
		all = append(all, crash{phase, kill})
		if strings.HasPrefix(phase, "step ") {
			steps++
		}
	}
	for _, phase := range first.passed {
		if named(phase) {
			all = append(all, crash{phase, power})
		}
	}
	t.Logf("a boot takes %.1f s and passes %d phases, %d of them steps; there are %d crashes to try", first.took.Seconds(), len(first.passed), steps, len(all))
	if steps < 40 || len(all) < steps+30 {
		t.Fatalf("a boot has more than that: the failpoints do not work: %v", first.passed)
	}
	twice := []crash{{"init installed", power}, {"init installed", power}}
	missed := crashAll(t, binary, append(groups(all, together()), twice))
	if left := crashAll(t, binary, groups(missed, 1)); len(left) > 0 {
		t.Errorf("these never came: %v", left)
	}
}

// named tells whether a phase is one that people have a name for: those of steps are the components' starts.
func named(phase string) bool {
	step, ok := strings.CutPrefix(phase, "step create unit/")
	return !ok && !strings.HasPrefix(phase, "step ") || ok && slices.Contains([]string{"containerd", "etcd", "kube-apiserver", "kubelet"}, step)
}

// crashAll boots a machine for each group, two at a time, and returns what did not come.
func crashAll(t *testing.T, binary string, all [][]crash) (missed []crash) {
	work := make(chan []crash)
	var lanes sync.WaitGroup
	var mu sync.Mutex // guards missed
	for lane := range 2 {
		lanes.Go(func() {
			for group := range work {
				t.Run(fmt.Sprint(group), func(t *testing.T) {
					b := boot(t, binary, fmt.Sprintf("sweep-%d", lane), group)
					mu.Lock()
					defer mu.Unlock()
					missed = append(missed, b.left...)
				})
			}
		})
	}
	for _, group := range all {
		work <- group
	}
	close(work)
	lanes.Wait()
	return missed
}

// booted is what a boot was like.
type booted struct {
	passed []string
	left   []crash
	took   time.Duration
}

// boot makes a cluster of one machine that crashes on the way, looks at it and takes it away.
func boot(t *testing.T, binary, story string, crashes []crash) (b booted) {
	c := &kit.Cluster{T: t, Name: "e2e-" + story, Bin: binary}
	c.Node = c.Main(0)
	defer c.Down()
	defer func() {
		if t.Failed() {
			c.Diagnose()
		}
	}()
	chosen(c)
	arm(c, crashes)
	keys, hand := watchKeys(c.Data("etc-kubernetes", "pki")), holdPlug(c)
	begun := time.Now()
	patientUp(c, len(crashes))
	b.took = time.Since(begun)
	hand.letGo(t)
	for file, seen := range keys.end() {
		if len(seen) != 1 {
			t.Errorf("%s was made %d times", file, len(seen))
		}
	}
	b.left = left(c)
	c.Healthy(soon)
	for _, name := range kit.Components() {
		c.Process(name) // one, not two
	}
	if r := c.MustUp(); !strings.Contains(r.Out, "nothing to do") {
		t.Errorf("another up: %s", r)
	}
	b.passed = passed(c)
	t.Logf("up took %.1f s with crashes at %v", b.took.Seconds(), crashes)
	return b
}

// patientUp runs up again when it has given up on a machine that went down three times.
func patientUp(c *kit.Cluster, crashes int) {
	c.T.Helper()
	for try := 0; ; try++ {
		r := c.Up()
		if r.Code == 0 {
			return
		}
		if try > crashes {
			c.T.Fatalf("up does not end well when all crashes are over: %s", r)
		}
		c.T.Logf("up is run again: %s", r)
	}
}

// chosen writes down that this host has chosen the machine to make its cluster, as an up does before it makes the machine: its
// folder is there already, for the agent has to find the failpoints in it, and would be taken for a machine that was made.
func chosen(c *kit.Cluster) {
	c.T.Helper()
	secret, _ := initserver.NewSecret()
	file := filepath.Join(kit.Root, "clusters", c.Name, "init.json")
	err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700),
		durable.Save(file, 1, map[string]string{"id": "up-" + strings.Repeat("0", 15) + "1", "machine": c.Node, "secret": secret}))
	if err != nil {
		c.T.Fatal(err)
	}
}

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
