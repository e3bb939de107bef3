// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"fmt"
	"regexp"
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

// Item is one document. Who stores it never looks into Data.
type Item struct {
	Kind    string
	Name    string
	Version string // the store's; only for comparing
	Data    []byte
}

// What callers branch on.
var (
	ErrNotFound = errors.New("there is no such record")
	ErrExists   = errors.New("there is such a record already")
	ErrConflict = errors.New("the record has changed meanwhile")
)

var (
	kindForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$`)
	nameForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$`)
)

// CheckName refuses what not every store can keep: kinds are single words, names are DNS names of at most 200 characters.
func CheckName(kind, name string) error {
	if !kindForm.MatchString(kind) {
		return fmt.Errorf("record %.40q: this cannot be a kind", kind)
	}
	if len(name) > 200 || !nameForm.MatchString(name) {
		return fmt.Errorf("record %s %.80q: this cannot be a name", kind, name)
	}
	return nil
}
