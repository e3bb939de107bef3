// SPDX-License-Identifier: Apache-2.0

// Package pods looks after static pods as far as the kubelet does not: it writes a manifest so that the kubelet never sees half of it,
// knows the processes that come of it, tells when they may be relied on, and takes them down in order when the machine goes down. It
// starts no process, never touches a manifest that Slipway has not written, and asks no API: it works while nothing else does.
//
// Read [Keeper] and [Manifest] first.
//
//	m := pods.NewManifest(pod, fingerprints)   // its text, with the hash that makes its pod one of its own
//	k.Know(pod, m.UID)                         // from now on its process is looked for
//	err := k.Await(ctx, "etcd", waiting)       // "the kubelet has not started it yet"
package pods

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/backend/probe"
	"github.com/slipway-project/slipway/internal/backend/units"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/sleep"
)

// Asker asks probes; *probe.Prober is one.
type Asker interface {
	Ask(ctx context.Context, pr plan.Probe) error
}

// Config is what a Keeper works with.
type Config struct {
	Probe Asker
	Proc  string // where processes are seen; empty means /proc
	Logs  string // where the kubelet keeps containers' logs; empty means /var/log/pods
	Log   *slog.Logger
	// OnEvent is told what happens to a pod that was ready once. Optional.
	OnEvent func(Event)
	// Nudge, if set, restarts the kubelet. It is called when a manifest has been there for long and the kubelet does not take it up.
	Nudge func(ctx context.Context) error
}

// Event is a pod's fall or rise.
type Event struct {
	Pod    string
	Ready  bool
	Detail string // why it is not ready
}

// Status is what is known of a component's pod.
type Status struct {
	Name     string
	PID      int // 0 when it does not run
	Since    time.Time
	Ready    bool
	Restarts int
	Waiting  string // why it is not ready
	LastSaid string // the last line of the container before this one
}

// Keeper knows the components' pods of a machine. Its methods may be called from many goroutines.
type Keeper struct {
	conf Config

	mu   sync.Mutex // guards pods
	pods map[string]*pod
}

type pod struct {
	item   plan.StaticPod
	uid    string
	main   process // as it was seen last
	ready  bool
	was    bool      // ready once, so that its fall is news
	since  time.Time // of the knowledge that it is not ready
	fails  int
	reason string
}

// New is a Keeper that knows no pod yet.
func New(c Config) *Keeper {
	if c.Proc == "" {
		c.Proc = "/proc"
	}
	if c.Logs == "" {
		c.Logs = "/var/log/pods"
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Keeper{conf: c, pods: map[string]*pod{}}
}

// Know takes note of the manifest that the kubelet has now: another one is another pod.
func (k *Keeper) Know(item plan.StaticPod, uid string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if p := k.pods[item.Name]; p != nil && p.uid == uid {
		p.item = item // how it is asked takes effect at once
		return
	}
	k.pods[item.Name] = &pod{item: item, uid: uid, since: time.Now()}
}

// Forget drops a pod whose manifest was taken away.
func (k *Keeper) Forget(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.pods, name)
}

// Knows tells whether a component of this name runs as a pod here.
func (k *Keeper) Knows(name string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.pods[name] != nil
}

func (k *Keeper) names() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	names := make([]string, 0, len(k.pods))
	for name := range k.pods {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (k *Keeper) get(name string) (pod, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.pods[name]
	if p == nil {
		return pod{}, false
	}
	return *p, true
}

// Manifest is a manifest as it stands on the node.
type Manifest struct {
	Text string
	UID  string // of the pod; empty where the manifest has no mark for it
}

// NewManifest puts the hashes where the plan's manifest has marks for them, and says above all who has written it. The same manifest
// over the same inputs is the same pod; any other is another pod.
func NewManifest(p plan.StaticPod, inputs []string) Manifest {
	sum := sha256.New()
	for _, s := range append([]string{p.Name, p.Manifest}, inputs...) {
		sum.Write([]byte(s))
		sum.Write([]byte{0})
	}
	hash := hex.EncodeToString(sum.Sum(nil))
	m := Manifest{}
	body := p.Manifest
	if p.Component {
		m.UID = hash[:32]
		body = strings.ReplaceAll(strings.ReplaceAll(body, plan.PodUID, m.UID), plan.PodInputs, hash)
	}
	m.Text = head(body) + body
	return m
}

const written = "# Written by slipway; it writes this file anew when it is changed. sha256:"

func head(body string) string {
	sum := sha256.Sum256([]byte(body))
	return written + hex.EncodeToString(sum[:]) + "\n"
}

// UIDOf is the UID that a manifest gives its pod, or empty.
func UIDOf(text string) string {
	for line := range strings.Lines(text) {
		if uid, ok := strings.CutPrefix(strings.TrimSpace(line), "uid: "); ok {
			return strings.Trim(uid, `"'`)
		}
	}
	return ""
}

// Ours tells whether Slipway has written a manifest, and whether it is as it was written.
func Ours(text string) (ours, same bool) {
	_, body, _ := strings.Cut(text, "\n")
	return strings.HasPrefix(text, written), text == head(body)+body
}

// deaf is how long the kubelet may leave a manifest alone before it is restarted: kubernetes#105543 and its like.
const deaf = 2 * time.Minute

// State tells whether the pod may be relied on now, or why not.
func (k *Keeper) State(ctx context.Context, name string) (ready bool, reason string, err error) {
	p, ok := k.get(name)
	if !ok {
		return false, "", fmt.Errorf("pod %s: nobody has written its manifest", name)
	}
	err = k.ask(ctx, p)
	if ctx.Err() != nil {
		return false, "", ctx.Err()
	}
	if err != nil {
		return false, err.Error(), nil //nolint:nilerr // that is the answer
	}
	k.set(p, true, "")
	return true, "", nil
}

// Await blocks until the process of the pod's present manifest is there and answers, through deaths and restarts. What answers while
// there is no such process is the pod before it.
func (k *Keeper) Await(ctx context.Context, name string, waiting func(reason string)) error {
	begun := time.Now()
	return probe.Until(ctx, func(ctx context.Context) error {
		p, ok := k.get(name)
		if !ok {
			return fmt.Errorf("nobody has written its manifest")
		}
		err := k.ask(ctx, p)
		if err == nil {
			k.set(p, true, "")
			return nil
		}
		if errors.Is(err, errDeaf) && time.Since(begun) > deaf && k.conf.Nudge != nil {
			begun = time.Now()
			k.conf.Log.Warn("the kubelet does not take up a manifest: restarting it", "pod", name)
			return errors.Join(err, k.conf.Nudge(ctx))
		}
		return err
	}, waiting)
}

var errDeaf = errors.New("the kubelet has not started it yet")

// ask looks for the process first: whatever answers without it is another.
func (k *Keeper) ask(ctx context.Context, p pod) error {
	if !k.lives(p.main) {
		found, err := k.processes(p.uid)
		if err != nil {
			return err
		}
		main, ok := component(p.item.Name, found[p.uid])
		if !ok {
			p.main = process{}
			return k.notRunning(p)
		}
		k.saw(p, main)
	}
	if p.item.Ready.Kind == plan.ProbeNone {
		return nil
	}
	if err := k.conf.Probe.Ask(ctx, p.item.Ready); err != nil {
		return fmt.Errorf("waiting for %s: %w", p.item.Ready, err)
	}
	return nil
}

func (k *Keeper) notRunning(p pod) error {
	switch n, said := k.restarts(p); {
	case said != "":
		return fmt.Errorf("it has ended (start %d) after saying: %s", n+1, said)
	default:
		return errDeaf
	}
}

// Down tells whether the pod that the kubelet has of an item, which is to be exchanged, has been of no use for long: nobody counts on
// it any more.
// One that nobody has asked yet is asked: an agent that has just begun knows of none that it is well.
func (k *Keeper) Down(ctx context.Context, item plan.StaticPod, uid string) bool {
	if !k.Knows(item.Name) {
		k.Know(item, uid)
	}
	p, _ := k.get(item.Name)
	if p.uid != uid || p.ready {
		return false
	}
	if k.ask(ctx, p) == nil {
		k.set(p, true, "")
		return false
	}
	return ctx.Err() == nil && time.Since(p.since) > units.DownAfter
}

func (k *Keeper) saw(p pod, main process) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if now := k.pods[p.item.Name]; now != nil && now.uid == p.uid {
		now.main = main
	}
}

// set notes how a pod is, and tells of a change once it was ready.
func (k *Keeper) set(p pod, ready bool, reason string) {
	k.mu.Lock()
	now := k.pods[p.item.Name]
	if now == nil || now.uid != p.uid {
		k.mu.Unlock()
		return
	}
	if now.ready && !ready {
		now.since = time.Now()
	}
	news := now.was && (now.ready != ready || now.reason != reason)
	now.ready, now.was, now.reason = ready, now.was || ready, reason
	if ready {
		now.fails = 0
	}
	k.mu.Unlock()
	if news && k.conf.OnEvent != nil {
		k.conf.OnEvent(Event{Pod: p.item.Name, Ready: ready, Detail: reason})
	}
}

const (
	look   = time.Second      // between two looks at the processes
	health = 10 * time.Second // between two questions to a pod that is well
	fails  = 3                // unanswered questions in a row that make it unwell
	grace  = 10 * time.Second // between SIGTERM and SIGKILL when the machine goes down
)

// Run watches the pods that were ready once until ctx ends: the kubelet starts them again and tells nobody.
func (k *Keeper) Run(ctx context.Context) error {
	for asked := (map[string]time.Time{}); ; {
		if err := sleep.For(ctx, look); err != nil {
			return nil //nolint:nilerr // it ends with ctx
		}
		for _, name := range k.names() {
			p, ok := k.get(name)
			if !ok || !p.was {
				continue
			}
			gone := !k.lives(p.main)
			if p.ready && !gone && time.Since(asked[name]) < health {
				continue
			}
			asked[name] = time.Now()
			k.judge(ctx, p, gone)
		}
	}
}

// judge calls a pod unready at once when its process has gone, and after some unanswered questions otherwise.
func (k *Keeper) judge(ctx context.Context, p pod, gone bool) {
	err := k.ask(ctx, p)
	switch {
	case ctx.Err() != nil:
	case err == nil && gone && p.ready: // it fell and rose between two looks
		k.set(p, false, "it has ended and was started again")
		k.set(p, true, "")
	case err == nil:
		k.set(p, true, "")
	case gone || !p.ready || k.failed(p) >= fails:
		k.set(p, false, err.Error())
	}
}

func (k *Keeper) failed(p pod) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.pods[p.item.Name]
	if now == nil || now.uid != p.uid {
		return 0
	}
	now.fails++
	return now.fails
}

// Status tells of every component's pod, by name.
func (k *Keeper) Status() []Status {
	var all []Status
	for _, name := range k.names() {
		p, ok := k.get(name)
		if !ok {
			continue
		}
		s := Status{Name: name, Ready: p.ready, Waiting: p.reason}
		if !k.lives(p.main) {
			found, err := k.processes(p.uid)
			if main, ok := component(name, found[p.uid]); err == nil && ok {
				p.main = main
				k.saw(p, main)
			}
		}
		if k.lives(p.main) {
			s.PID, s.Since = p.main.pid, k.since(p.main)
		}
		s.Restarts, s.LastSaid = k.restarts(p)
		all = append(all, s)
	}
	return all
}

// Stop ends the processes of the named pods one after the other, because the machine goes down. The kubelet must have been stopped:
// it would start them again.
func (k *Keeper) Stop(ctx context.Context, names []string) error {
	var errs []error
	for _, name := range names {
		if p, ok := k.get(name); ok {
			errs = append(errs, k.end(ctx, p.uid))
		}
	}
	return errors.Join(errs...)
}

func (k *Keeper) end(ctx context.Context, uid string) error {
	signal, deadline := unix.SIGTERM, time.Now().Add(grace)
	told := map[process]bool{}
	for {
		found, err := k.processes(uid)
		if err != nil || len(found[uid]) == 0 {
			return err
		}
		if signal == unix.SIGTERM && time.Now().After(deadline) {
			signal, told = unix.SIGKILL, map[process]bool{}
		}
		for _, p := range found[uid] {
			if told[p] {
				continue
			}
			told[p] = true
			if err := unix.Kill(p.pid, signal); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
		if err := sleep.For(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// AwaitEnd blocks until no process of a pod is left after its manifest was taken away: of the one with this UID, and of the one that
// is known by the name.
func (k *Keeper) AwaitEnd(ctx context.Context, name, uid string) error {
	p, _ := k.get(name)
	for {
		found, err := k.processes(uid, p.uid)
		if err != nil || len(found) == 0 {
			return err
		}
		if err := sleep.For(ctx, 50*time.Millisecond); err != nil {
			return errors.Join(errors.New("its pod has not ended"), err)
		}
	}
}
