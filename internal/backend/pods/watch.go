// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slipway-project/slipway/internal/sleep"
)

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
