// SPDX-License-Identifier: Apache-2.0

// Package sim runs clusters of simulated machines: the real agent, node lock, init service, join client, join service, membership,
// roster and registry on hosts, etcd and a network in memory, under a clock of their own. One seed decides delays, orders and
// crashes. It holds tests only and nothing that ships. It never looks at what a real kernel, etcd or API server does.
//
// Read [world], then [machine] and the stories in testdata, which are what one writes.
//
//	machines 3
//	init n1
//	join n2 control-plane
//	crash n2 at "give /etc/kubernetes/pki/ca.key"
//	start n2
//	wait
//	expect members 2
package sim

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/control/joinserver"
)

// world is all that there is in one run.
type world struct {
	dir  string
	seed uint64
	slow time.Duration // the longest delay of a message; most are far shorter

	mu       sync.Mutex // guards the fields below; it is never held while anything waits
	dice     *rand.Rand
	order    []*machine
	machines map[string]*machine
	clusters map[string]*cluster // by the pin of the join CA
	prepared []member            // what the operator's document says
	tokens   map[string]string   // by the story's name
	network  chan struct{}       // closed and replaced when a machine is cut, healed, switched on or off
	armed    []*crash
	pending  []*crash // that a story has told of
	steps    []step
	counts   map[string]int
	events   []string
	problems []string
	audits   []joinserver.Entry
	begun    time.Time

	catchUp   time.Duration // what a learner's etcd takes
	planes    int           // how many control planes the operator's document names
	changedAt int           // how many steps there were before the first change of the plan

	over chan struct{}  // closed when the run is over: nobody comes back
	bg   sync.WaitGroup // who would
}

// step is one point that a crash may divide from the next.
type step struct {
	machine, name string
	n             int // the how many-th of this name on this machine
}

func (s step) String() string { return fmt.Sprintf("%s %q #%d", s.machine, s.name, s.n) }

// crash is to happen at a step.
type crash struct {
	machine, name string
	n             int           // 0: the next one
	agentOnly     bool          // only the agent dies; what it supervises lives on
	cutOnly       bool          // nothing dies: the machine is cut off
	stall         time.Duration // nothing dies: the step takes so long
	done          chan struct{}
	mislay        bool          // nothing dies: the answer is lost
	agentless     time.Duration // with agentOnly: until the next agent; 0: at once
	back          time.Duration // 0: somebody else switches the machine on again
	then          *crash        // armed when this one has happened
}

// epoch is when every run begins: after this program was made, or its own clock checks would refuse to issue anything.
var epoch = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// newWorld must be called in a synctest bubble.
func newWorld(t testing.TB, seed uint64, machines int) *world {
	t.Helper()
	time.Sleep(time.Until(epoch))
	dir := scratch(t)
	w := &world{
		dir: dir, seed: seed, slow: 40 * time.Millisecond, dice: rand.New(rand.NewPCG(seed, 0x51177)), machines: map[string]*machine{}, clusters: map[string]*cluster{},
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

// scratch is a folder in memory, where there is one: a run writes some hundred small files, each made durable.
func scratch(t testing.TB) string {
	dir, err := os.MkdirTemp("/dev/shm", "sim-") //nolint:usetesting // t.TempDir is on a disk, and this is ten times as quick
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// intn is a number in [0, n).
func (w *world) intn(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dice.IntN(n)
}

// delay is how long something takes: a little, and now and then much.
func (w *world) delay() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	d := time.Duration(w.dice.Int64N(int64(2*time.Millisecond))) + 50*time.Microsecond
	if w.dice.IntN(8) == 0 {
		d += time.Duration(w.dice.Int64N(int64(w.slow)))
	}
	return d
}

// note adds a line to the run's log.
func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noteLocked(format, args...)
}

func (w *world) noteLocked(format string, args ...any) {
	w.events = append(w.events, fmt.Sprintf("%9.3fs ", time.Since(w.begun).Seconds())+fmt.Sprintf(format, args...))
}

// wrong says that an invariant is broken.
func (w *world) wrong(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noteLocked("WRONG: "+format, args...)
	w.problems = append(w.problems, fmt.Sprintf(format, args...))
}

// failed is what went wrong, with the log, or nothing.
func (w *world) failed() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.problems) == 0 {
		return ""
	}
	return strings.Join(w.problems, "\n") + "\nlog:\n" + strings.Join(w.events, "\n")
}

func (w *world) changeNetwork() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.network)
	w.network = make(chan struct{})
}

func (w *world) networkChange() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.network
}

// at finds the machine with an address.
func (w *world) at(a netip.Addr) *machine {
	for _, m := range w.order {
		if m.address == a {
			return m
		}
	}
	return nil
}

// end switches everything off and waits until nothing runs any more.
func (w *world) end() {
	close(w.over)
	w.bg.Wait()
	for _, m := range w.order {
		m.off()
	}
}

// later does something after a while, unless the run is over.
func (w *world) later(d time.Duration, do func()) {
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

func (w *world) isOver() bool {
	select {
	case <-w.over:
		return true
	default:
		return false
	}
}
