// SPDX-License-Identifier: Apache-2.0

// Package pods manages static pods where the kubelet does not: it renders their manifests, finds the
// processes that the kubelet starts from them, checks readiness and health, and stops the processes in
// order at shutdown. It starts no process, never touches a manifest that Slipway has not written, and
// needs no API server.
//
// Read [Manager] and [Manifest] first.
//
//	man := pods.NewManifest(pod, fingerprints)   // its text, with a UID derived from its content
//	m.Track(pod, man.UID)                        // from now on its process is looked for
//	err := m.Await(ctx, "etcd", waiting)         // "the kubelet has not started it yet"
package pods

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/backend/probe"
	"github.com/slipway-project/slipway/internal/backend/units"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/sleep"
)

// Prober runs readiness probes; *probe.Prober implements it.
type Prober interface {
	Ask(ctx context.Context, pr plan.Probe) error
}

// Config configures a Manager.
type Config struct {
	Probe Prober
	Proc  string // the proc file system; empty means /proc
	Logs  string // the kubelet's directory of container logs; empty means /var/log/pods
	Log   *slog.Logger
	// OnEvent, if set, is called when a pod that was ready once becomes unready or ready again.
	OnEvent func(Event)
	// RestartKubelet, if set, is called when the kubelet has not started a pod a long time after its
	// manifest was written.
	RestartKubelet func(ctx context.Context) error
}

// Event is a change of a pod's readiness.
type Event struct {
	Pod    string
	Ready  bool
	Detail string // why it is not ready
}

// Status describes the pod of a component.
type Status struct {
	Name       string
	PID        int // 0 if it is not running
	Since      time.Time
	Ready      bool
	Restarts   int
	Waiting    string // why it is not ready
	LastOutput string // the last log line of the previous container
}

// Manager tracks the pods of a machine's components. It is safe for concurrent use.
type Manager struct {
	conf Config

	mu   sync.Mutex // guards pods
	pods map[string]*pod
}

// pod is a tracked pod. Copies are snapshots; changes go through the Manager.
type pod struct {
	item     plan.StaticPod
	uid      string
	main     process // as it was last observed
	ready    bool
	wasReady bool      // it was ready once, so changes are reported as events
	since    time.Time // since when it is known to be unready
	fails    int
	reason   string
}

// New returns a Manager that tracks no pods yet.
func New(c Config) *Manager {
	if c.Proc == "" {
		c.Proc = "/proc"
	}
	if c.Logs == "" {
		c.Logs = "/var/log/pods"
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Manager{conf: c, pods: map[string]*pod{}}
}

// Track starts to track the pod of the manifest that the kubelet has now. A new UID replaces the pod of
// the same name.
func (m *Manager) Track(item plan.StaticPod, uid string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.pods[item.Name]; p != nil && p.uid == uid {
		p.item = item // a changed probe takes effect immediately
		return
	}
	m.pods[item.Name] = &pod{item: item, uid: uid, since: time.Now()}
}

// Forget stops tracking a pod whose manifest was removed.
func (m *Manager) Forget(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.pods, name)
}

// Has reports whether the named component runs as a pod here.
func (m *Manager) Has(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pods[name] != nil
}

func (m *Manager) names() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	names := make([]string, 0, len(m.pods))
	for name := range m.pods {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// get returns a snapshot of a tracked pod.
func (m *Manager) get(name string) (pod, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.pods[name]
	if p == nil {
		return pod{}, false
	}
	return *p, true
}

// restartKubeletAfter is how long the kubelet may ignore a manifest before it is restarted
// (kubernetes#105543 and similar bugs).
const restartKubeletAfter = 2 * time.Minute

// State reports whether the pod is ready now, and the reason if it is not.
func (m *Manager) State(ctx context.Context, name string) (ready bool, reason string, err error) {
	p, ok := m.get(name)
	if !ok {
		return false, "", fmt.Errorf("pod %s: its manifest has not been written", name)
	}
	err = m.ask(ctx, p)
	if ctx.Err() != nil {
		return false, "", ctx.Err()
	}
	if err != nil {
		return false, err.Error(), nil //nolint:nilerr // that is the answer
	}
	m.set(p, true, "")
	return true, "", nil
}

// Await blocks until the process of the pod's current manifest runs and is ready, across restarts. It
// ignores processes of an earlier manifest, even if they answer the probe.
func (m *Manager) Await(ctx context.Context, name string, waiting func(reason string)) error {
	begun := time.Now()
	return probe.Until(ctx, func(ctx context.Context) error {
		p, ok := m.get(name)
		if !ok {
			return errors.New("its manifest has not been written")
		}
		err := m.ask(ctx, p)
		if err == nil {
			m.set(p, true, "")
			return nil
		}
		if errors.Is(err, errNotStarted) && time.Since(begun) > restartKubeletAfter && m.conf.RestartKubelet != nil {
			begun = time.Now()
			m.conf.Log.Warn("kubelet ignores a manifest, restarting it", "pod", name)
			return errors.Join(err, m.conf.RestartKubelet(ctx))
		}
		return err
	}, waiting)
}

var errNotStarted = errors.New("the kubelet has not started it yet")

// ask returns nil if the pod's process runs and its probe succeeds. The process is looked for first,
// because another process may answer the probe.
func (m *Manager) ask(ctx context.Context, p pod) error {
	if !m.isAlive(p.main) {
		found, err := m.processes(p.uid)
		if err != nil {
			return err
		}
		main, ok := component(p.item.Name, found[p.uid])
		if !ok {
			p.main = process{}
			if n, last := m.restarts(p); last != "" {
				return fmt.Errorf("it has exited (start %d), last output: %s", n+1, last)
			}
			return errNotStarted
		}
		m.setProcess(p, main)
	}
	if p.item.Ready.Kind == plan.ProbeNone {
		return nil
	}
	if err := m.conf.Probe.Ask(ctx, p.item.Ready); err != nil {
		return fmt.Errorf("waiting for %s: %w", p.item.Ready, err)
	}
	return nil
}

// Down reports whether the pod with this UID, which is about to be replaced, has been unready for long
// enough to count as down. A pod that has not been checked yet is checked now, because a new agent does
// not know which pods are ready.
func (m *Manager) Down(ctx context.Context, item plan.StaticPod, uid string) bool {
	if !m.Has(item.Name) {
		m.Track(item, uid)
	}
	p, _ := m.get(item.Name)
	if p.uid != uid || p.ready {
		return false
	}
	if m.ask(ctx, p) == nil {
		m.set(p, true, "")
		return false
	}
	return ctx.Err() == nil && time.Since(p.since) > units.DownAfter
}

// setProcess records the main process of a pod, unless the pod was replaced meanwhile.
func (m *Manager) setProcess(p pod, main process) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now := m.pods[p.item.Name]; now != nil && now.uid == p.uid {
		now.main = main
	}
}

// set records whether a pod is ready, and reports changes after it was ready once.
func (m *Manager) set(p pod, ready bool, reason string) {
	m.mu.Lock()
	now := m.pods[p.item.Name]
	if now == nil || now.uid != p.uid {
		m.mu.Unlock()
		return
	}
	if now.ready && !ready {
		now.since = time.Now()
	}
	changed := now.wasReady && (now.ready != ready || now.reason != reason)
	now.ready, now.wasReady, now.reason = ready, now.wasReady || ready, reason
	if ready {
		now.fails = 0
	}
	m.mu.Unlock()
	if changed && m.conf.OnEvent != nil {
		m.conf.OnEvent(Event{Pod: p.item.Name, Ready: ready, Detail: reason})
	}
}

const (
	checkPeriod  = time.Second      // between two checks of the processes
	healthPeriod = 10 * time.Second // between two health checks of a ready pod
	maxFailures  = 3                // failed checks in a row that make a pod unready
	stopTimeout  = 10 * time.Second // between SIGTERM and SIGKILL at shutdown
)

// Run watches the pods that were ready once until ctx ends: the kubelet restarts them without reporting
// it.
func (m *Manager) Run(ctx context.Context) error {
	for asked := (map[string]time.Time{}); ; {
		if err := sleep.For(ctx, checkPeriod); err != nil {
			return nil //nolint:nilerr // ctx has ended
		}
		for _, name := range m.names() {
			p, ok := m.get(name)
			if !ok || !p.wasReady {
				continue
			}
			gone := !m.isAlive(p.main)
			if p.ready && !gone && time.Since(asked[name]) < healthPeriod {
				continue
			}
			asked[name] = time.Now()
			m.checkHealth(ctx, p, gone)
		}
	}
}

// checkHealth marks a pod unready immediately if its process is gone, and otherwise after several failed
// checks.
func (m *Manager) checkHealth(ctx context.Context, p pod, gone bool) {
	err := m.ask(ctx, p)
	switch {
	case ctx.Err() != nil:
	case err == nil && gone && p.ready: // it was restarted between two checks
		m.set(p, false, "it was restarted")
		m.set(p, true, "")
	case err == nil:
		m.set(p, true, "")
	case gone || !p.ready || m.failed(p) >= maxFailures:
		m.set(p, false, err.Error())
	}
}

// failed counts a failed check and returns the number of failed checks in a row.
func (m *Manager) failed(p pod) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.pods[p.item.Name]
	if now == nil || now.uid != p.uid {
		return 0
	}
	now.fails++
	return now.fails
}

// Status returns the status of every tracked pod, sorted by name.
func (m *Manager) Status() []Status {
	var all []Status
	for _, name := range m.names() {
		p, ok := m.get(name)
		if !ok {
			continue
		}
		s := Status{Name: name, Ready: p.ready, Waiting: p.reason}
		if !m.isAlive(p.main) {
			found, err := m.processes(p.uid)
			if main, ok := component(name, found[p.uid]); err == nil && ok {
				p.main = main
				m.setProcess(p, main)
			}
		}
		if m.isAlive(p.main) {
			s.PID, s.Since = p.main.pid, m.since(p.main)
		}
		s.Restarts, s.LastOutput = m.restarts(p)
		all = append(all, s)
	}
	return all
}

// Stop stops the processes of the named pods one after the other, at shutdown. The kubelet must have been
// stopped before, because it would restart them.
func (m *Manager) Stop(ctx context.Context, names []string) error {
	var errs []error
	for _, name := range names {
		if p, ok := m.get(name); ok {
			errs = append(errs, m.end(ctx, p.uid))
		}
	}
	return errors.Join(errs...)
}

// end stops the processes of a pod: with SIGTERM once, and with SIGKILL after stopTimeout.
func (m *Manager) end(ctx context.Context, uid string) error {
	signal, deadline := unix.SIGTERM, time.Now().Add(stopTimeout)
	signaled := map[process]bool{}
	for {
		found, err := m.processes(uid)
		if err != nil || len(found[uid]) == 0 {
			return err
		}
		if signal == unix.SIGTERM && time.Now().After(deadline) {
			signal, signaled = unix.SIGKILL, map[process]bool{}
		}
		for _, p := range found[uid] {
			if signaled[p] {
				continue
			}
			signaled[p] = true
			if err := unix.Kill(p.pid, signal); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
		if err := sleep.For(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// AwaitEnd blocks until a pod whose manifest was removed has no processes left: neither the pod with this
// UID nor the tracked pod of this name.
func (m *Manager) AwaitEnd(ctx context.Context, name, uid string) error {
	p, _ := m.get(name)
	for {
		found, err := m.processes(uid, p.uid)
		if err != nil || len(found) == 0 {
			return err
		}
		if err := sleep.For(ctx, 50*time.Millisecond); err != nil {
			return errors.Join(errors.New("its pod has not terminated"), err)
		}
	}
}
