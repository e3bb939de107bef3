// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/slipway-project/slipway/internal/core/admission"
)

// The nodes lie in one document, so that one compare-and-swap keeps what holds between them: no two share a key, a name, an
// address or a part of the pod range, whatever several control planes do at once.
const (
	kindNodes = "nodes"
	nameNodes = "all"
	kindToken = "token"
)

// bookHead is its first line; each further line is one record. Lines let a change cost what it changes, not what there is.
const bookHead = `{"slipwayNodes":1}`

// book is the document, decoded.
type book struct {
	version string
	records admission.Records
	lines   [][]byte // of the nodes, in their order
}

// line is a record as it is written. Exactly one of the fields is set.
type line struct {
	Node    *admission.Node    `json:"node,omitempty"`
	Removed *admission.Removed `json:"removed,omitempty"`
}

// errUnregistered: before the operator's document has brought the first node nobody knows who has which share.
var errUnregistered = errors.New("nobody has registered the cluster's nodes yet")

// book reads the nodes. It is shared and must not be altered.
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

// newest tells whether nobody in this process has seen a later one than b.
func (r *Registry) newest(b book) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last.version == b.version
}

func decodeBook(item Item) (book, error) {
	head, rest, _ := bytes.Cut(item.Data, []byte("\n"))
	if string(head) != bookHead {
		return book{}, fmt.Errorf("the first line is %.60q, not %s: a newer slipway wrote it, or it is damaged", head, bookHead)
	}
	b := book{version: item.Version}
	for text := range bytes.Lines(rest) {
		var l line
		if err := strict(text, &l); err != nil {
			return book{}, fmt.Errorf("line %.80q: %w", text, err)
		}
		switch {
		case l.Node != nil && l.Removed == nil:
			b.records.Nodes = append(b.records.Nodes, *l.Node)
			b.lines = append(b.lines, text)
		case l.Removed != nil && l.Node == nil:
			b.records.Removed = append(b.records.Removed, *l.Removed)
		default:
			return book{}, fmt.Errorf("line %.80q: it is no record", text)
		}
	}
	for i := 1; i < len(b.records.Nodes); i++ {
		if b.records.Nodes[i-1].Name >= b.records.Nodes[i].Name {
			return book{}, fmt.Errorf("node %.80q is there twice or not in its place", b.records.Nodes[i].Name)
		}
	}
	return b, nil
}

// encodeBook writes the records; of those that old has too the lines are taken over.
func encodeBook(records admission.Records, old book) (data []byte, lines [][]byte, err error) {
	lines = make([][]byte, len(records.Nodes))
	data = append(make([]byte, 0, (len(records.Nodes)+len(records.Removed)+1)*400), bookHead+"\n"...)
	at := 0 // in old: both are sorted by name
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

// saveBook replaces old, whole; ErrConflict and ErrExists when somebody else did.
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

// strict decodes one JSON value and refuses unknown fields: a record of a newer slipway must not lose them in the hands of an older one.
func strict(data []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return err
	}
	if dec.More() {
		return errors.New("there is more than one value")
	}
	return nil
}
