// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/slipway-project/slipway/internal/backend/probe"
	"github.com/slipway-project/slipway/internal/backend/units"
	"github.com/slipway-project/slipway/internal/core/plan"
)

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
