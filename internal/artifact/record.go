// SPDX-License-Identifier: Apache-2.0

package artifact

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
)

// key names one build: the hash of everything that decides its output.
type key string

var keyForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

// recordVersion changes when the meaning of a field does. A record of another
// version is not understood and so not used.
const recordVersion = 1

// record says what a build gave. It is written once and never changed.
type record struct {
	Version int             `json:"version"`
	Key     key             `json:"key"`   // must be the file's name: a record copied over another is not believed
	About   string          `json:"about"` // for people: "etcd 3.6.16, go1.26.8 amd64"
	Files   map[string]Blob `json:"files"`
	Sum     string          `json:"sum"` // of the record with an empty Sum
}

func (r record) sum() string {
	r.Sum = ""
	text, err := json.Marshal(r)
	if err != nil {
		panic(err) // strings and numbers only
	}
	h := sha256.Sum256(text)
	return hex.EncodeToString(h[:])
}

// check tells whether the record is whole and fit to be used for k.
func (r record) check(k key) error {
	switch {
	case r.Version != recordVersion:
		return fmt.Errorf("version %d, want %d: %w", r.Version, recordVersion, ErrDamaged)
	case r.Key != k:
		return fmt.Errorf("belongs to another key: %w", ErrDamaged)
	case r.Sum != r.sum():
		return fmt.Errorf("checksum is wrong: %w", ErrDamaged)
	}
	for name, b := range r.Files {
		if _, err := ParseDigest(b.Digest.String()); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (s *Store) recordPath(k key) string { return filepath.Join(s.records(), string(k)+".json") }

// recall returns the files of a build done before. No record is no error: ok is
// false. A record that cannot be believed is ErrDamaged, never an empty answer.
func (s *Store) recall(k key) (files map[string]Blob, ok bool, err error) {
	text, err := os.ReadFile(s.recordPath(k))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("read record: %w", err)
	}
	var r record
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, false, fmt.Errorf("read record %s: %w: %w", k, err, ErrDamaged)
	}
	if err := r.check(k); err != nil {
		return nil, false, fmt.Errorf("read record %s: %w", k, err)
	}
	return r.Files, true, nil
}

// remember writes a record. The blobs must be in the store already.
func (s *Store) remember(k key, about string, files map[string]Blob) error {
	r := record{Version: recordVersion, Key: k, About: about, Files: files}
	r.Sum = r.sum()
	text, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = writeDurably(s.tmp(), s.recordPath(k), 0o644, func(w io.Writer) error {
			_, err := w.Write(append(text, '\n'))
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("write record %s: %w", about, err)
	}
	return nil
}
