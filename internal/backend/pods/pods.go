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
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/core/plan"
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
