// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/strictjson"
)

// Nodes returns all records, sorted by name. It fails with ErrNotFound before the first nodes are registered.
func (r *Registry) Nodes(ctx context.Context) ([]admission.Node, error) {
	b, err := r.book(ctx)
	if err != nil {
		return nil, err
	}
	return slices.Clone(b.records.Nodes), nil
}

// Removed returns the machines that were removed and may not join again without a token.
func (r *Registry) Removed(ctx context.Context) ([]admission.Removed, error) {
	b, err := r.book(ctx)
	if err != nil {
		return nil, err
	}
	return slices.Clone(b.records.Removed), nil
}

// Node returns the record with this name, or ErrNotFound.
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

// ByKey returns the record of the machine with this key, and whether there is one.
func (r *Registry) ByKey(ctx context.Context, key pin.Pin) (admission.Node, bool, error) {
	b, err := r.book(ctx)
	if err != nil {
		return admission.Node{}, false, err
	}
	n, ok := b.records.ByKey(key)
	return n, ok, nil
}

// Waiting reports whether the machine with this key waits for approval.
func (r *Registry) Waiting(ctx context.Context, key pin.Pin) (bool, error) {
	b, err := r.book(ctx)
	if err != nil {
		return false, err
	}
	return key != "" && slices.ContainsFunc(b.records.Nodes, func(n admission.Node) bool { return n.PendingKey == key }), nil
}

// UpdateNode changes a record. It calls change with the newest record, again after each conflict; an error of change ends the update.
// Name, pool, index and pod CIDR cannot be changed.
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
			return records, errors.New("the name of a record cannot change")
		}
		return records.Put(n)
	})
	return out, err
}

// Register adds the operator's nodes, see [admission.Records.Register]. Only Register creates the document of nodes. Every control
// plane may call it at any time. If it refuses some of the nodes, it still registers the others.
func (r *Registry) Register(ctx context.Context, nodes []admission.Node) error {
	var problems error
	err := r.alter(ctx, "register nodes", true, func(records admission.Records) (out admission.Records, _ error) {
		out, problems = records.Register(nodes, r.now())
		if len(records.Nodes) > 0 && slices.Equal(out.Nodes, records.Nodes) {
			return records, errUnchanged
		}
		if len(out.Nodes) == 0 {
			return records, errUnchanged // do not create an empty document
		}
		return out, nil
	})
	return errors.Join(err, problems)
}

// DeleteNode deletes a record and remembers the machine as removed. A second call does nothing.
func (r *Registry) DeleteNode(ctx context.Context, name string) error {
	return r.alter(ctx, "delete node "+name, false, func(records admission.Records) (admission.Records, error) {
		if _, ok := records.Node(name); !ok {
			return records, errUnchanged
		}
		return records.Remove(name, r.now()), nil
	})
}

// Approve admits the machine that waits for the name of another one, and returns its key. The other machine is removed.
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

// errUnchanged means that there is nothing to write. It is not an error for the caller.
var errUnchanged = errors.New("unchanged")

// alter changes the nodes in one swap. With create it may create the document.
func (r *Registry) alter(ctx context.Context, what string, create bool, change func(admission.Records) (admission.Records, error)) error {
	return r.exclusive(ctx, what, func() error {
		return swap(ctx, what, func() error {
			b, err := r.book(ctx)
			if create && errors.Is(err, errUnregistered) {
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

// All nodes are in one document. So one compare-and-swap guarantees that no two nodes have the same key, name, address or pod CIDR,
// even if several control planes write at once.
const (
	kindNodes = "nodes"
	nameNodes = "all"
	kindToken = "token"
)

// bookHead is the first line of the document. Each further line is one record, so that a change encodes only the records that change.
const bookHead = `{"slipwayNodes":1}`

// book is the decoded document. It is shared and must not be changed.
type book struct {
	version string
	records admission.Records
	lines   [][]byte // the encoded nodes, in the order of records.Nodes
}

// line is one encoded record. Exactly one of its fields is set.
type line struct {
	Node    *admission.Node    `json:"node,omitempty"`
	Removed *admission.Removed `json:"removed,omitempty"`
}

// errUnregistered means that Register has not written the first nodes yet, so it is unknown which node has which pod CIDR.
var errUnregistered = errors.New("the cluster's nodes are not registered yet")

// book reads the nodes.
func (r *Registry) book(ctx context.Context) (book, error) {
	return r.reads.do(ctx, r.fetch)
}

func (r *Registry) fetch(ctx context.Context) (book, error) {
	item, err := r.store.Get(ctx, kindNodes, nameNodes)
	if errors.Is(err, ErrNotFound) {
		return book{}, fmt.Errorf("read nodes: %w: %w", errUnregistered, err)
	}
	if err != nil {
		return book{}, fmt.Errorf("read nodes: %w", err)
	}
	r.mu.Lock()
	last := r.last
	r.mu.Unlock()
	if last.version == item.Version {
		return last, nil
	}
	b, err := decodeBook(item)
	if err != nil {
		return book{}, fmt.Errorf("read nodes: %w", err)
	}
	r.remember(b)
	return b, nil
}

func (r *Registry) remember(b book) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = b
}

// isNewest reports whether b is the newest version that this process knows.
func (r *Registry) isNewest(b book) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last.version == b.version
}

func decodeBook(item Item) (book, error) {
	head, rest, _ := bytes.Cut(item.Data, []byte("\n"))
	if string(head) != bookHead {
		return book{}, fmt.Errorf("the first line is %.60q, want %s: written by a newer version of slipway, or damaged", head, bookHead)
	}
	b := book{version: item.Version}
	for text := range bytes.Lines(rest) {
		var l line
		if err := strictjson.Decode(text, &l); err != nil {
			return book{}, fmt.Errorf("line %.80q: %w", text, err)
		}
		switch {
		case l.Node != nil && l.Removed == nil:
			b.records.Nodes = append(b.records.Nodes, *l.Node)
			b.lines = append(b.lines, text)
		case l.Removed != nil && l.Node == nil:
			b.records.Removed = append(b.records.Removed, *l.Removed)
		default:
			return book{}, fmt.Errorf("line %.80q: not a record", text)
		}
	}
	for i := 1; i < len(b.records.Nodes); i++ {
		if b.records.Nodes[i-1].Name >= b.records.Nodes[i].Name {
			return book{}, fmt.Errorf("node %.80q is duplicate or not in order", b.records.Nodes[i].Name)
		}
	}
	return b, nil
}

// encodeBook encodes the records. It reuses the lines of nodes that are unchanged since old.
func encodeBook(records admission.Records, old book) (data []byte, lines [][]byte, err error) {
	lines = make([][]byte, len(records.Nodes))
	data = append(make([]byte, 0, (len(records.Nodes)+len(records.Removed)+1)*400), bookHead+"\n"...)
	at := 0 // in old; both are sorted by name
	for i := range records.Nodes {
		n := &records.Nodes[i]
		for at < len(old.records.Nodes) && old.records.Nodes[at].Name < n.Name {
			at++
		}
		if at < len(old.records.Nodes) && old.records.Nodes[at] == *n {
			lines[i] = old.lines[at]
		} else if lines[i], err = encodeLine(line{Node: n}); err != nil {
			return nil, nil, err
		}
		data = append(data, lines[i]...)
	}
	for i := range records.Removed {
		text, err := encodeLine(line{Removed: &records.Removed[i]})
		if err != nil {
			return nil, nil, err
		}
		data = append(data, text...)
	}
	return data, lines, nil
}

func encodeLine(l line) ([]byte, error) {
	text, err := json.Marshal(l)
	if err != nil {
		return nil, fmt.Errorf("encode record: %w", err)
	}
	return append(text, '\n'), nil
}

// saveBook replaces old. It fails with ErrConflict or ErrExists if another writer was first.
func (r *Registry) saveBook(ctx context.Context, old book, records admission.Records) error {
	data, lines, err := encodeBook(records, old)
	if err != nil {
		return fmt.Errorf("write nodes: %w", err)
	}
	item, err := r.store.Put(ctx, Item{Kind: kindNodes, Name: nameNodes, Version: old.version, Data: data})
	if err != nil {
		return fmt.Errorf("write nodes: %w", err)
	}
	r.remember(book{version: item.Version, records: records, lines: lines})
	return nil
}

// sharedReads lets concurrent readers of the nodes share one read, which begins after all of them have asked. Each result is as fresh
// as that of a separate read, and a flood of joins costs the API server one read at a time.
type sharedReads struct {
	mu   sync.Mutex // guards the field below
	next *read      // the one that has not begun, or nil

	running chan struct{} // holds a value while a read is under way
}

type read struct {
	done      chan struct{} // closed when the fields below are set
	book      book
	err       error
	abandoned bool // the caller that fetched was cancelled; that says nothing about the records
}

// do returns the result of a fetch that begins after the call.
func (f *sharedReads) do(ctx context.Context, fetch func(context.Context) (book, error)) (book, error) {
	for {
		r, mine := f.join()
		if mine {
			f.run(ctx, r, fetch)
		}
		select {
		case <-r.done:
		case <-ctx.Done():
			return book{}, fmt.Errorf("read nodes: %w", context.Cause(ctx))
		}
		if !r.abandoned || mine {
			return r.book, r.err
		}
	}
}

// join returns the read that has not begun. If mine is set, the caller must run it.
func (f *sharedReads) join() (r *read, mine bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.next == nil {
		f.next, mine = &read{done: make(chan struct{})}, true
	}
	return f.next, mine
}

func (f *sharedReads) run(ctx context.Context, r *read, fetch func(context.Context) (book, error)) {
	defer close(r.done)
	select {
	case f.running <- struct{}{}:
		defer func() { <-f.running }()
	case <-ctx.Done():
	}
	f.mu.Lock()
	f.next = nil // callers from now on need a later read
	f.mu.Unlock()
	r.book, r.err = fetch(ctx)
	r.abandoned = r.err != nil && ctx.Err() != nil
}
