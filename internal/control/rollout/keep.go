// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/slipway-project/slipway/internal/control/lease"
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
	if wanted == "" && (k.now().Sub(mine.passed) > settling || m.Unwell(ctx, true) == "") && k.wanted() == "" { // nor since it was asked
		_, err := m.slot.Save(ctx, mine.version, record{})
		if err != nil {
			m.adopted = false // a renewal whose answer was lost may have made another version: then it is taken up again
		}
		if err == nil || errors.Is(err, lease.ErrLost) {
			k.settle(tenure{})
		}
		return err
	}
	if k.now().Sub(mine.renewed) < renewAfter && !mine.unsaved {
		return nil
	}
	err := k.write(ctx, m, mine.version, wanted, mine.items, mine.since)
	if errors.Is(err, lease.ErrLost) {
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
	if s.Holder == nil || s.Holder.Node != m.Self {
		m.adopted = true
		return nil
	}
	return k.write(ctx, m, version, s.Holder.Item, s.Holder.all(), k.now())
}

// write takes the lease or renews it. After an error the record may be this machine's all the same, because the answer to this
// write or to an earlier one was lost: then adopt finds out, even if no item asks again.
func (k *Keeper) write(ctx context.Context, m *member, version, item string, items []string, since time.Time) error {
	asked := k.now()
	next, err := m.slot.Save(ctx, version, record{Holder: &holder{Node: m.Self, Item: item, Items: items, Since: since, Renewed: asked}})
	m.adopted = err == nil
	if err != nil {
		return err
	}
	mine := k.tenure()
	mine.holds, mine.version, mine.since, mine.renewed = true, next, since, asked
	mine.items, mine.unsaved = items, false
	k.settle(mine)
	return nil
}

// all are the items of a record; an earlier version of Slipway wrote one.
func (h *holder) all() []string {
	if len(h.Items) == 0 {
		return []string{h.Item}
	}
	return h.Items
}

// wanted is one of the items that want the turn or use it, always the same of several; nothing when none does.
func (k *Keeper) wanted() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	items := slices.Collect(maps.Keys(k.claims))
	for _, item := range k.mine.items {
		if k.held[item] > 0 {
			items = append(items, item)
		}
	}
	if len(items) == 0 {
		return ""
	}
	return slices.Min(items)
}
