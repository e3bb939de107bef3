// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/slipway-project/slipway/internal/durable"
)

// key names one build: the hash of everything that decides its output, in hex.
type key string

const recordSchema = 1

// record says what a build gave. A build that is done again gives the same, so
// a record never changes its meaning.
type record struct {
	Key   key             `json:"key"`   // the file's name: a record copied over another is not believed
	About string          `json:"about"` // for people: "etcd 3.6.16, go1.26.8 amd64"
	Files map[string]Blob `json:"files"`
}

func (s *Store) recordPath(k key) string { return filepath.Join(s.records(), string(k)) }

// recall returns the files of a build done before. No record is no error: ok is
// false. A record that cannot be believed is an error, never an empty answer.
func (s *Store) recall(k key) (files map[string]Blob, ok bool, err error) {
	var r record
	err = durable.Load(s.recordPath(k), recordSchema, &r)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	if r.Key != k {
		return nil, false, fmt.Errorf("load record %s: belongs to %s: %w", k, r.About, ErrDamaged)
	}
	for name, b := range r.Files {
		if _, err := ParseDigest(b.Digest.String()); err != nil {
			return nil, false, fmt.Errorf("load record %s: %s: %w", k, name, err)
		}
	}
	return r.Files, true, nil
}

// remember writes a record. The blobs must be in the store already.
func (s *Store) remember(k key, about string, files map[string]Blob) error {
	return durable.Save(s.recordPath(k), recordSchema, record{Key: k, About: about, Files: files})
}
