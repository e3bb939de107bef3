// SPDX-License-Identifier: Apache-2.0

// Package sweep_test crashes agents and whole machines wherever a crash may separate two actions: at every step and every named phase of
// the creation of a cluster, of a join of a worker and of a control plane, and on the side that serves a join. The result must always be
// the same: one cluster, the same key material, the same members, all nodes ready.
//
// The tests do not list the phases: a machine without crashes reports the ones that it passes, and a crash is tried at each. Each boot has
// [perBoot] crashes that are far apart, because a boot for each would take more than eight minutes; with SLIPWAY_SWEEP=alone each crash has
// its own boot. A crash that does not happen, because an earlier one has brought the machine past it, is tried again alone.
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

// perBoot is the number of crashes in a boot. initserver gives up after 20.
const perBoot = 6

// soon is far longer than any step takes.
const soon = time.Minute

// crashesPerBoot returns perBoot, or 1 with SLIPWAY_SWEEP=alone.
func crashesPerBoot() int {
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
	t.Logf("a boot takes %.1f s and passes %d phases, %d of them steps; trying %d crashes", first.took.Seconds(), len(first.passed), steps, len(all))
	if steps < 40 || len(all) < steps+30 {
		t.Fatalf("phases of a boot: got %d steps and %d crashes, want 40 and 30 more: the failpoints do not work: %v", steps, len(all), first.passed)
	}
	twice := []crash{{"init installed", power}, {"init installed", power}}
	missed := crashAll(t, binary, append(groups(all, crashesPerBoot()), twice))
	if left := crashAll(t, binary, groups(missed, 1)); len(left) > 0 {
		t.Errorf("crashes that did not happen: got %v, want none", left)
	}
}

// named reports whether a phase has a name; of the steps, only the starts of components count.
func named(phase string) bool {
	step, ok := strings.CutPrefix(phase, "step create unit/")
	return !ok && !strings.HasPrefix(phase, "step ") || ok && slices.Contains([]string{"containerd", "etcd", "kube-apiserver", "kubelet"}, step)
}

// crashAll boots a machine for each group, two at a time, and returns the crashes that did not happen.
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

// booted is the result of a boot.
type booted struct {
	passed []string // phases
	left   []crash  // crashes that did not happen
	took   time.Duration
}

// boot creates a cluster of one machine that crashes meanwhile, checks it and removes it.
func boot(t *testing.T, binary, story string, crashes []crash) (b booted) {
	c := &kit.Cluster{T: t, Name: "e2e-" + story, Bin: binary}
	c.Node = c.Main(0)
	defer c.Down()
	defer func() {
		if t.Failed() {
			c.Diagnose()
		}
	}()
	choose(c)
	arm(c, crashes)
	keys, watcher := watchKeys(c.Data("etc-kubernetes", "pki")), watchPower(c)
	begun := time.Now()
	patientUp(c, len(crashes))
	b.took = time.Since(begun)
	watcher.stop(t)
	for file, seen := range keys.end() {
		if len(seen) != 1 {
			t.Errorf("contents of %s: got %d, want 1", file, len(seen))
		}
	}
	b.left = left(c)
	c.Healthy(soon)
	for _, name := range kit.Components() {
		c.Process(name) // fails if there are two
	}
	c.UpToDate()
	b.passed = passed(c)
	t.Logf("up took %.1f s with crashes at %v", b.took.Seconds(), crashes)
	return b
}

// patientUp repeats up when it fails because a machine went down too often.
func patientUp(c *kit.Cluster, crashes int) {
	c.T.Helper()
	for try := 0; ; try++ {
		r := c.Up()
		if r.Code == 0 {
			return
		}
		if try > crashes {
			c.T.Fatalf("up after all crashes: %s", r)
		}
		c.T.Logf("running up again: %s", r)
	}
}

// choose records that this host creates its cluster on the machine, as an up does before it creates the machine. Otherwise up would take
// the machine's directory, which already holds the failpoints, for an existing machine.
func choose(c *kit.Cluster) {
	c.T.Helper()
	secret, _ := initserver.NewSecret()
	file := filepath.Join(kit.Root, "clusters", c.Name, "init.json")
	err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700),
		durable.Save(file, 1, map[string]string{"id": "up-" + strings.Repeat("0", 15) + "1", "machine": c.Node, "secret": secret}))
	if err != nil {
		c.T.Fatal(err)
	}
}

// keyWatch records every content of the files that may be created only once.
type keyWatch struct {
	stop, done chan struct{}

	mu   sync.Mutex // guards the field below
	seen map[string][][32]byte
}

func watchKeys(dir string) *keyWatch {
	w := &keyWatch{stop: make(chan struct{}), done: make(chan struct{}), seen: map[string][][32]byte{}}
	go func() {
		defer close(w.done)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			w.look(dir)
			select {
			case <-w.stop:
				w.look(dir)
				return
			case <-tick.C:
			}
		}
	}()
	return w
}

func (w *keyWatch) look(dir string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, file := range kit.OnceOnly() {
		text, err := os.ReadFile(filepath.Join(dir, file)) // never half-written, because files are renamed into place
		if sum := sha256.Sum256(text); err == nil && !slices.Contains(w.seen[file], sum) {
			w.seen[file] = append(w.seen[file], sum)
		}
	}
}

// end stops the watch and returns the digests of the contents of each file; none for a file that never existed.
func (w *keyWatch) end() map[string][][32]byte {
	close(w.stop)
	<-w.done
	for _, file := range kit.OnceOnly() {
		if w.seen[file] == nil {
			w.seen[file] = [][32]byte{}
		}
	}
	return w.seen
}
