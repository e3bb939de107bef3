// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"

	"github.com/slipway-project/slipway/internal/core/record"
)

// Store keeps small documents by kind and name. Reads are as fresh as the last write that anybody was told of. An error other
// than the three below means that nobody knows whether the change happened: read again.
type Store interface {
	// Get fails with ErrNotFound only when there surely is no such document.
	Get(ctx context.Context, kind, name string) (Item, error)
	// List is complete or an error, sorted by name.
	List(ctx context.Context, kind string) ([]Item, error)
	// Put creates when the item has no version (ErrExists), else replaces exactly this version (ErrConflict, also when the document
	// is gone). It returns the item with its new version.
	Put(ctx context.Context, item Item) (Item, error)
	// Delete takes exactly this version away (ErrConflict, ErrNotFound); without a version whatever there is.
	Delete(ctx context.Context, kind, name, version string) error
	// Watch calls changed at once and soon after each change of a document of the kind, for as long as ctx lasts, never twice at a
	// time; several changes may be told as one. It gets over failures by itself, misses nothing over them, and returns the
	// context's error only.
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
