// SPDX-License-Identifier: Apache-2.0

package turns

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/slipway-project/slipway/internal/control/slot"
	"github.com/slipway-project/slipway/internal/rest"
)

// wait is what somebody waits for, and who should provide it.
type wait struct{ reason, provider string }

// Take is reconcile.Turn.
func (k *Keeper) Take(ctx context.Context, turn, item string, waiting func(reason, provider string)) (pass func(), err error) {
	if turn != k.turn {
		return nil, fmt.Errorf("take turn %q of %s: this slipway knows only %q", turn, item, k.turn)
	}
	pass = k.claim(item)
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

// Hold is reconcile.Turn. What an earlier agent has begun is not over before the item is ready.
func (k *Keeper) Hold(turn, item string) (pass func()) {
	if turn != k.turn {
		return func() {}
	}
	return k.claim(item)
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
	if err := rest.For(ctx, lookEvery); err != nil && !errors.Is(context.Cause(ctx), errChanged) {
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
		if err := k.write(ctx, m, version, item, k.now()); err != nil {
			if errors.Is(err, slot.ErrLost) {
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
	return wait{}, nil
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
