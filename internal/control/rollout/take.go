// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/slipway-project/slipway/internal/control/lease"
	"github.com/slipway-project/slipway/internal/sleep"
)

// wait is what somebody waits for, and who should provide it.
type wait struct{ reason, provider string }

// Take is reconcile.Turn.
func (k *Keeper) Take(ctx context.Context, turn, item string, waiting func(reason, provider string)) (pass func(), err error) {
	if turn != k.turn {
		return nil, fmt.Errorf("take turn %q of %s: this slipway knows only %q", turn, item, k.turn)
	}
	pass = k.note(k.claims, item)
	for told := (wait{}); ; {
		var err error
		m, changed := k.current()
		w := wait{"the control role of this machine, which asks the others", "the agent of this machine"}
		if m != nil {
			if w, err = k.try(ctx, m, item); err == nil && w == (wait{}) {
				return pass, nil
			}
		}
		if ctx.Err() != nil {
			pass()
			return nil, ctx.Err()
		}
		if err != nil {
			w = wait{"the cluster's records, to know whose it is: " + err.Error(), "the API servers"}
		}
		if w != told {
			waiting(w.reason, w.provider)
			told = w
		}
		if err := k.pause(ctx, changed); err != nil {
			pass()
			return nil, err
		}
	}
}

// Hold is reconcile.Turn. What was begun in this turn, perhaps by an earlier agent, is not over before the item is ready. It counts
// for nothing when the turn was taken for others: what cannot become ready for a reason of its own would keep it for ever.
func (k *Keeper) Hold(turn, item string) (pass func()) {
	if turn != k.turn {
		return func() {}
	}
	return k.note(k.held, item)
}

func (k *Keeper) pause(ctx context.Context, changed <-chan struct{}) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	errChanged := errors.New("changed")
	go func() {
		select {
		case <-changed:
			cancel(errChanged)
		case <-ctx.Done():
		}
	}()
	if err := sleep.For(ctx, lookEvery); err != nil && !errors.Is(context.Cause(ctx), errChanged) {
		return err
	}
	return nil
}

// try takes the turn if it can be had now, and says what there is to wait for otherwise.
func (k *Keeper) try(ctx context.Context, m *member, item string) (wait, error) {
	if !m.Several {
		return wait{}, nil
	}
	if err := k.begin(ctx); err != nil {
		return wait{}, err
	}
	defer k.end()
	mine := k.tenure()
	if !mine.holds || k.now().Sub(mine.renewed) > certain {
		var s record
		version, err := m.slot.Load(ctx, &s)
		if err != nil {
			return wait{}, err
		}
		if h := s.Holder; h != nil && h.Node != m.Self && m.slot.Left(version, life) > 0 {
			return wait{h.String(), h.Node}, nil
		}
		items := []string{item}
		if s.Holder != nil && s.Holder.Node == m.Self {
			items = with(s.Holder.all(), item)
		}
		if err := k.write(ctx, m, version, item, items, k.now()); err != nil {
			if errors.Is(err, lease.ErrLost) {
				return wait{"another control plane, which has just taken it", ""}, nil
			}
			return wait{}, err
		}
		mine = k.tenure()
	}
	if k.now().Sub(mine.since) < patience {
		if why := m.Unwell(ctx, false); why != "" {
			until := mine.since.Add(patience).UTC().Format(time.TimeOnly)
			return wait{why + " (at " + until + " it goes on all the same)", ""}, nil
		}
	}
	k.takenFor(item)
	return wait{}, nil
}

// takenFor adds an item to what the turn was taken for. The record is told with the next renewal, at once, and not before the item
// may go on: what mends the records must not wait for them.
func (k *Keeper) takenFor(item string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !slices.Contains(k.mine.items, item) {
		k.mine.items, k.mine.unsaved = with(k.mine.items, item), true
		k.look()
	}
}

func with(items []string, item string) []string {
	if slices.Contains(items, item) {
		return items
	}
	return append(slices.Clone(items), item)
}

// begin and end enclose what reads and writes the slot.
func (k *Keeper) begin(ctx context.Context) error {
	select {
	case k.ops <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (k *Keeper) end() { <-k.ops }

func (k *Keeper) tenure() tenure {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.mine
}

func (k *Keeper) settle(t tenure) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mine = t
}
