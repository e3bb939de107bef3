// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/pin"
)

// Nodes lists the records, sorted by name. Before the first was registered it fails with ErrNotFound: nothing known is not nothing there.
func (r *Registry) Nodes(ctx context.Context) ([]admission.Node, error) {
	b, err := r.book(ctx)
	if err != nil {
		return nil, err
	}
	return slices.Clone(b.records.Nodes), nil
}

// Removed lists the machines that were taken out, and do not come back by themselves.
func (r *Registry) Removed(ctx context.Context) ([]admission.Removed, error) {
	b, err := r.book(ctx)
	if err != nil {
		return nil, err
	}
	return slices.Clone(b.records.Removed), nil
}

// Node finds one record; ErrNotFound when there is none of this name.
func (r *Registry) Node(ctx context.Context, name string) (admission.Node, error) {
	b, err := r.book(ctx)
	if err != nil {
		return admission.Node{}, err
	}
	n, ok := b.records.Node(name)
	if !ok {
		return admission.Node{}, fmt.Errorf("node %.80q: %w", name, ErrNotFound)
	}
	return n, nil
}

// ByKey finds the record of the machine with this key; false when surely none has it.
func (r *Registry) ByKey(ctx context.Context, key pin.Pin) (admission.Node, bool, error) {
	b, err := r.book(ctx)
	if err != nil {
		return admission.Node{}, false, err
	}
	n, ok := b.records.ByKey(key)
	return n, ok, nil
}

// Waiting tells whether the machine with this key waits for approval.
func (r *Registry) Waiting(ctx context.Context, key pin.Pin) (bool, error) {
	b, err := r.book(ctx)
	if err != nil {
		return false, err
	}
	return key != "" && slices.ContainsFunc(b.records.Nodes, func(n admission.Node) bool { return n.PendingKey == key }), nil
}

// UpdateNode changes a record. change may be called several times, each time with the newest record; its error ends the matter.
// Name, pool, index and range cannot be changed.
func (r *Registry) UpdateNode(ctx context.Context, name string, change func(*admission.Node) error) (out admission.Node, err error) {
	err = r.alter(ctx, "update node "+name, false, func(records admission.Records) (admission.Records, error) {
		n, ok := records.Node(name)
		if !ok {
			return records, ErrNotFound
		}
		before := n
		if err := change(&n); err != nil {
			return records, err
		}
		if out = n; n == before {
			return records, errUnchanged
		}
		if n.Name != name {
			return records, errors.New("a record's name never changes")
		}
		return records.Put(n)
	})
	return out, err
}

// Register adds the operator's nodes, see [admission.Records.Register]. It is the only thing that begins the records, and may be
// called again at any time by every control plane.
func (r *Registry) Register(ctx context.Context, nodes []admission.Node) error {
	var problems error
	err := r.alter(ctx, "register nodes", true, func(records admission.Records) (out admission.Records, _ error) {
		out, problems = records.Register(nodes, r.now())
		if len(records.Nodes) > 0 && slices.Equal(out.Nodes, records.Nodes) {
			return records, errUnchanged
		}
		if len(out.Nodes) == 0 {
			return records, errUnchanged // no nodes are no reason to begin
		}
		return out, nil
	})
	return errors.Join(err, problems)
}

// DeleteNode takes a record away and remembers the machine as removed. A second call finds nothing to do.
func (r *Registry) DeleteNode(ctx context.Context, name string) error {
	return r.alter(ctx, "delete node "+name, false, func(records admission.Records) (admission.Records, error) {
		if _, ok := records.Node(name); !ok {
			return records, errUnchanged
		}
		return records.Remove(name, r.now()), nil
	})
}

// Approve lets the machine in that waits for the name of another, whose key it returns. The other is removed by that.
func (r *Registry) Approve(ctx context.Context, name string) (key pin.Pin, err error) {
	err = r.alter(ctx, "approve node", false, func(records admission.Records) (admission.Records, error) {
		out, n, err := records.Approve(name, r.now())
		key = n.Key
		return out, err
	})
	if err != nil {
		return "", err
	}
	return key, nil
}

// Watch calls changed at once and soon after each change of the nodes, until ctx ends.
func (r *Registry) Watch(ctx context.Context, changed func()) error {
	return r.store.Watch(ctx, kindNodes, changed)
}

// errUnchanged: there is nothing to write, and that is fine.
var errUnchanged = errors.New("unchanged")

// alter changes the nodes in one swap. begin: it may write the first document.
func (r *Registry) alter(ctx context.Context, what string, begin bool, change func(admission.Records) (admission.Records, error)) error {
	return r.alone(ctx, what, func() error {
		return swap(ctx, what, func() error {
			b, err := r.book(ctx)
			if begin && errors.Is(err, errUnregistered) {
				b, err = book{}, nil
			}
			if err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			records, err := change(b.records)
			switch {
			case errors.Is(err, errUnchanged):
				return nil
			case err != nil:
				return fmt.Errorf("%s: %w", what, err)
			}
			return r.saveBook(ctx, b, records)
		})
	})
}

// alone waits for its turn among the writers of this process.
func (r *Registry) alone(ctx context.Context, what string, do func() error) error {
	select {
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	case r.turn <- struct{}{}:
	}
	defer func() { <-r.turn }()
	return do()
}
