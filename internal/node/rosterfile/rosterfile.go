// SPDX-License-Identifier: Apache-2.0

// Package rosterfile keeps a node's copy of the cluster's signed roster on its disk, so that the node finds its cluster again
// after a reboot without asking anybody. It believes what the join CA has signed, and never an older roster than one it has
// taken; clocks play no part. It never fetches a roster and never acts on one.
//
// Read [File] and [Load].
//
//	f := rosterfile.Open("/var/lib/slipway/state/roster.json", joinCA)
//	changed, err := f.Take(signed) // from a join service
//	r, next, err := f.Now()        // <-next: there is another one
package rosterfile

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/slipway-project/slipway/internal/core/roster"
	"github.com/slipway-project/slipway/internal/durable"
)

// ErrOlder: the node has a newer roster already. A join service that lags behind sends such; it is no attack by itself.
var ErrOlder = errors.New("it is older than the one that this node has")

// maxSize bounds what is read: ten thousand nodes take a megabyte.
const maxSize = 8 << 20

// File is the roster on one node's disk. One process writes it, others may read it by [Load]. Safe for concurrent use.
type File struct {
	path string
	ca   *x509.Certificate

	mu      sync.Mutex // guards the fields below
	current roster.Roster
	err     error // why there is no roster
	changed chan struct{}
}

// Open reads what is there. A file that is missing or damaged is no error here: [File.Now] tells, and the next roster that is
// taken replaces it.
func Open(path string, ca *x509.Certificate) *File {
	f := &File{path: path, ca: ca, changed: make(chan struct{})}
	f.current, f.err = Load(path, ca)
	return f
}

// Load reads a roster file and believes it only when ca has signed it. The error is an fs.ErrNotExist when there is none.
func Load(path string, ca *x509.Certificate) (roster.Roster, error) {
	file, err := os.Open(path)
	if err != nil {
		return roster.Roster{}, fmt.Errorf("read roster: %w", err)
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxSize+1))
	if err != nil {
		return roster.Roster{}, fmt.Errorf("read roster: %w", err)
	}
	r, err := verify(data, ca)
	if err != nil {
		return roster.Roster{}, fmt.Errorf("read roster %s: %w", path, err)
	}
	return r, nil
}

// verify opens a roster as it travels: roster.Signed, JSON.
func verify(data []byte, ca *x509.Certificate) (roster.Roster, error) {
	if len(data) > maxSize {
		return roster.Roster{}, fmt.Errorf("%d bytes are more than a roster may have", len(data))
	}
	var s roster.Signed
	strict := json.NewDecoder(bytes.NewReader(data))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&s); err != nil {
		return roster.Roster{}, fmt.Errorf("decode roster: %w", err)
	}
	r, err := s.Open(ca)
	if err != nil {
		return roster.Roster{}, err
	}
	if !r.Usable() {
		return roster.Roster{}, fmt.Errorf("roster %d names no API server or no join service", r.Generation)
	}
	return r, nil
}

// Take keeps a roster that the join CA has signed, and returns when it is on the disk. It refuses one of a lower generation
// ([ErrOlder]) and another one of the same generation. The same one again changes nothing.
func (f *File) Take(signed []byte) (changed bool, err error) {
	r, err := verify(signed, f.ca)
	if err != nil {
		return false, fmt.Errorf("take roster: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil { // a ticket may have brought one since
		f.current, f.err = Load(f.path, f.ca)
	}
	if f.err == nil {
		switch have := f.current; {
		case r.Generation < have.Generation:
			return false, fmt.Errorf("take roster %d: %w, %d", r.Generation, ErrOlder, have.Generation)
		case r.Generation == have.Generation && !r.Same(have):
			return false, fmt.Errorf("take roster %d: this node has another one with the same generation", r.Generation)
		case r.Generation == have.Generation:
			return false, nil
		}
	}
	if err := durable.WriteFile(f.path, 0o600, signed); err != nil {
		return false, fmt.Errorf("take roster %d: %w", r.Generation, err)
	}
	f.current, f.err = r, nil
	close(f.changed)
	f.changed = make(chan struct{})
	return true, nil
}

// Read is the roster, without a look at the disk. The error is an fs.ErrNotExist when there never was one.
func (f *File) Read() (roster.Roster, error) {
	r, _, err := f.Now()
	return r, err
}

// Now is the roster and a channel that is closed when there is another one.
func (f *File) Now() (r roster.Roster, changed <-chan struct{}, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current, f.changed, f.err
}

// Generation is what the node tells a join service that it has: 0 for none.
func (f *File) Generation() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current.Generation
}
