// SPDX-License-Identifier: Apache-2.0

// Package cluster runs clusters of simulated machines for tests: the real agent, node lock, init service, join client,
// join service, membership, roster and registry on hosts, etcd and a network in memory, under a clock of their own.
// One seed decides delays, orders and crashes. The package is never part of what ships, and it does not show what a
// real kernel, etcd or API server does.
//
// Read [Parse] and [Story.Run], then the stories in internal/sim/testdata.
//
//	machines 3
//	init n1
//	join n2 control-plane
//	crash n2 at "give /etc/kubernetes/pki/ca.key"
//	start n2
//	wait
//	expect members 2
package cluster

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/control/joinserver"
	"github.com/slipway-project/slipway/internal/core/pin"
)

// World is the state of one run.
type World struct {
	dir  string
	seed uint64
	slow time.Duration // the longest delay of a message; most are far shorter

	mu       sync.Mutex // guards the fields below; no goroutine waits while it holds it
	dice     *rand.Rand
	order    []*machine
	machines map[string]*machine
	clusters map[pin.Pin]*cluster // by the pin of the join CA
	prepared []member             // what the operator's document says
	tokens   map[string]string    // by the story's name
	network  chan struct{}        // closed and replaced when a machine is cut, healed, switched on or off
	armed    []*Crash
	pending  []*Crash // prepared by the story
	steps    []Step
	counts   map[string]int
	events   []string
	problems []string
	audits   []joinserver.Entry
	begun    time.Time

	catchUp   time.Duration // that a learner's etcd takes
	planes    int           // how many control planes the operator's document names
	changedAt int           // how many steps there were before the first change of the plan

	over chan struct{}  // closed when the run is over: no machine starts again
	bg   sync.WaitGroup // delayed starts
}

// Step is a point in a run at which a machine can crash.
type Step struct {
	Machine, Name string
	N             int // 1 for the first of this name on this machine
}

func (s Step) String() string { return fmt.Sprintf("%s %q #%d", s.Machine, s.Name, s.N) }

// Crash is a crash of a machine that happens at a step.
type Crash struct {
	Machine, Name string
	N             int           // 0: the next one
	AgentOnly     bool          // only the agent dies; the processes that it supervises stay
	cutOnly       bool          // the machine is cut off instead
	stall         time.Duration // the step takes this long instead
	done          chan struct{}
	Mislay        bool          // the answer to the write is lost instead
	Agentless     time.Duration // with AgentOnly: time until the next agent; 0: at once
	Back          time.Duration // time until the machine starts again
	Then          *Crash        // armed when this one has happened
}

// arm prepares crashes, each of which may have another one that is armed once it has happened.
func (w *World) arm(crashes []*Crash) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range crashes {
		for d := c; d != nil; d = d.Then {
			if d.done = make(chan struct{}); d.Back == 0 {
				d.Back = defaultBack
			}
		}
		w.armed = append(w.armed, c)
	}
}

// defaultBack is how long a machine stays off after a crash that does not say otherwise.
const defaultBack = 3 * time.Second

// Steps returns all steps of a run that has ended, in their order.
func (w *World) Steps() []Step { return w.steps }

// StepsOfChange returns the steps since the story's first change of the plan, or all if it has none.
func (w *World) StepsOfChange() []Step { return w.steps[w.changedAt:] }

// Happened tells whether the run reached the step of a crash.
func (w *World) Happened(c *Crash) bool { return !slices.Contains(w.armed, c) }

// epoch is when every run starts. It is later than the build of this program, or its clock checks would refuse to sign.
var epoch = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// newWorld must be called in a synctest bubble.
func newWorld(t testing.TB, seed uint64, machines int) *World {
	t.Helper()
	time.Sleep(time.Until(epoch))
	dir := scratch(t)
	w := &World{
		dir: dir, seed: seed, slow: 40 * time.Millisecond, dice: rand.New(rand.NewPCG(seed, 0x51177)), machines: map[string]*machine{}, clusters: map[pin.Pin]*cluster{},
		tokens: map[string]string{}, network: make(chan struct{}), counts: map[string]int{}, begun: time.Now(), catchUp: 300 * time.Millisecond, over: make(chan struct{}),
	}
	for i := range machines {
		name := fmt.Sprintf("n%d", i+1)
		m := &machine{w: w, name: name, address: netip.AddrFrom4([4]byte{10, 0, 0, byte(10 + i)}), root: filepath.Join(dir, name, "0"), changed: make(chan struct{})}
		w.order = append(w.order, m)
		w.machines[name] = m
	}
	return w
}

// scratch returns a temporary directory, in memory if possible: a run writes hundreds of small files, each with fsync.
func scratch(t testing.TB) string {
	dir, err := os.MkdirTemp("/dev/shm", "sim-") //nolint:usetesting // t.TempDir is on a disk, and this is ten times as quick
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// intn returns a random number in [0, n).
func (w *World) intn(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dice.IntN(n)
}

// delay returns a random duration: mostly short, sometimes long.
func (w *World) delay() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	d := time.Duration(w.dice.Int64N(int64(2*time.Millisecond))) + 50*time.Microsecond
	if w.dice.IntN(8) == 0 {
		d += time.Duration(w.dice.Int64N(int64(w.slow)))
	}
	return d
}

// note adds a line to the run's log.
func (w *World) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noteLocked(format, args...)
}

func (w *World) noteLocked(format string, args ...any) {
	w.events = append(w.events, fmt.Sprintf("%9.3fs ", time.Since(w.begun).Seconds())+fmt.Sprintf(format, args...))
}

// wrong records that an invariant does not hold.
func (w *World) wrong(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noteLocked("WRONG: "+format, args...)
	w.problems = append(w.problems, fmt.Sprintf(format, args...))
}

// Failed is what went wrong, with the log, or nothing.
func (w *World) failed() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.problems) == 0 {
		return ""
	}
	return strings.Join(w.problems, "\n") + "\nlog:\n" + strings.Join(w.events, "\n")
}

func (w *World) changeNetwork() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.network)
	w.network = make(chan struct{})
}

func (w *World) networkChange() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.network
}

// at returns the machine with an address, or nil.
func (w *World) at(a netip.Addr) *machine {
	for _, m := range w.order {
		if m.address == a {
			return m
		}
	}
	return nil
}

// end switches all machines off and waits until every goroutine has ended.
func (w *World) end() {
	close(w.over)
	w.bg.Wait()
	for _, m := range w.order {
		m.off()
	}
}

// later calls do after d, unless the run is over.
func (w *World) later(d time.Duration, do func()) {
	w.bg.Go(func() {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			do()
		case <-w.over:
		}
	})
}

func (w *World) isOver() bool {
	select {
	case <-w.over:
		return true
	default:
		return false
	}
}
