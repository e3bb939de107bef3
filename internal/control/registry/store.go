// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"

	"github.com/slipway-project/slipway/internal/core/record"
)

// Store keeps small documents by kind and name. A read sees every write whose caller got an answer. After an error other than the
// three below it is unknown whether a change was made: read again.
type Store interface {
	// Get fails with ErrNotFound only if the document certainly does not exist.
	Get(ctx context.Context, kind, name string) (Item, error)
	// List returns all documents of the kind, sorted by name, or an error.
	List(ctx context.Context, kind string) ([]Item, error)
	// Put creates the document if the item has no version (ErrExists). Otherwise it replaces exactly this version (ErrConflict, also
	// if the document does not exist). It returns the item with its new version.
	Put(ctx context.Context, item Item) (Item, error)
	// Delete deletes exactly this version (ErrConflict, ErrNotFound), or any version if version is "".
	Delete(ctx context.Context, kind, name, version string) error
	// Watch calls changed at once and soon after each change of a document of the kind, until ctx ends, from one goroutine at a time.
	// Several changes may be reported by one call. It retries after failures without missing a change, and returns only the
	// context's error.
	Watch(ctx context.Context, kind string, changed func()) error
}

// Item is one record as a store keeps it.
type Item = record.Item

// What a store reports; see package record.
var (
	ErrNotFound = record.ErrNotFound
	ErrExists   = record.ErrExists
	ErrConflict = record.ErrConflict
)
