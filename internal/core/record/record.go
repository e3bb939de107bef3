// SPDX-License-Identifier: Apache-2.0

// Package record is what stores of the cluster's records and their users have in common: the stored item, its names, and the
// errors that callers branch on. The stores themselves are Secrets of the cluster (package kube) and, for tests and
// simulations, memory; package control/registry gives the items their meaning.
//
// Read [Item] first.
package record

import (
	"errors"
	"fmt"
	"regexp"
)

// Item is one stored record. A store does not interpret Data.
type Item struct {
	Kind    string
	Name    string
	Version string // the store's; only for comparison
	Data    []byte
}

// What callers branch on.
var (
	ErrNotFound = errors.New("record not found")
	ErrExists   = errors.New("the record exists already")
	ErrConflict = errors.New("the record has been changed meanwhile")
)

var (
	kindForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$`)
	nameForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$`)
)

// CheckName refuses names that not every store can keep: kinds are single words, names are DNS names of at most 200 characters.
func CheckName(kind, name string) error {
	if !kindForm.MatchString(kind) {
		return fmt.Errorf("record %.40q: not a valid kind", kind)
	}
	if len(name) > 200 || !nameForm.MatchString(name) {
		return fmt.Errorf("record %s %.80q: not a valid name", kind, name)
	}
	return nil
}
