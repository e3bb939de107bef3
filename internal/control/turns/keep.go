// SPDX-License-Identifier: Apache-2.0

package turns

import (
	"context"
	"errors"
	"time"

	"github.com/slipway-project/slipway/internal/control/slot"
)

// keep does what there is to do with what is held: renew it, or pass it on.
func (k *Keeper) keep(ctx context.Context, m *member) error {
	if err := k.begin(ctx); err != nil {
		return err
	}
	defer k.end()
	mine, wanted := k.tenure(), k.wanted()
	switch {
	case !mine.holds:
		return k.adopt(ctx, m)
	case wanted == "" && mine.passed.IsZero():
		mine.passed = k.now()
		k.settle(mine)
	case wanted != "" && !mine.passed.IsZero():
		mine.passed = time.Time{}
		k.settle(mine)
	}
	if wanted == "" && (k.now().Sub(mine.passed) > settling || m.Unwell(ctx, true) == "") {
		_, err := m.slot.Save(ctx, mine.version, record{})
		if err == nil || errors.Is(err, slot.ErrLost) {
			k.settle(tenure{})
		}
		return err
	}
	if k.now().Sub(mine.renewed) < renewAfter {
		return nil
	}
	err := k.write(ctx, m, mine.version, wanted, mine.since)
	if errors.Is(err, slot.ErrLost) {
		m.adopted = false // the answer to a renewal of one's own may have been lost, too: then it is taken up again
		k.settle(tenure{})
		k.log.Warn("this machine has lost its turn: it was not heard of for too long", "turn", k.turn)
	}
	return err
}

// adopt takes over what this machine held when its agent ended: what it had begun is not over before all are well.
func (k *Keeper) adopt(ctx context.Context, m *member) error {
	if m.adopted {
		return nil
	}
	var s record
	version, err := m.slot.Load(ctx, &s)
	if err != nil {
		return err
	}
	m.adopted = true
	if s.Holder == nil || s.Holder.Node != m.Self {
		return nil
	}
	return k.write(ctx, m, version, s.Holder.Item, k.now())
}

// write takes the turn or renews it.
func (k *Keeper) write(ctx context.Context, m *member, version, item string, since time.Time) error {
	asked := k.now()
	next, err := m.slot.Save(ctx, version, record{Holder: &holder{Node: m.Self, Item: item, Since: since, Renewed: asked}})
	if err != nil {
		return err
	}
	mine := k.tenure()
	mine.holds, mine.version, mine.since, mine.renewed = true, next, since, asked
	k.settle(mine)
	return nil
}

// wanted is one of the items that want the turn or use it, always the same of several; nothing when none does.
func (k *Keeper) wanted() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	first := ""
	for item := range k.claims {
		if first == "" || item < first {
			first = item
		}
	}
	return first
}
