// SPDX-License-Identifier: Apache-2.0

// Package rosterfile stores a node's copy of the cluster's signed roster on disk, so that the node can
// reconnect to its cluster after a reboot. It accepts only rosters signed by the join CA, and never one that
// is older than the current one by generation; clocks do not matter. It never fetches a roster and never acts
// on one.
//
// Read [File] and [Load].
//
//	f := rosterfile.Open("/var/lib/slipway/state/roster.json", joinCA)
//	changed, err := f.Take(signed) // from a join service
//	r, next, err := f.Now()        // next is closed when the roster changes
package rosterfile

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/slipway-project/slipway/internal/broadcast"
	"github.com/slipway-project/slipway/internal/core/roster"
	"github.com/slipway-project/slipway/internal/core/strictjson"
	"github.com/slipway-project/slipway/internal/durable"
)

// ErrOlder reports that the node already has a newer roster. A join service that is behind may send such a
// roster; it does not imply an attack.
var ErrOlder = errors.New("older than this node's roster")

// maxSize limits the file; the roster of ten thousand nodes takes 1 MB.
const maxSize = 8 << 20

// File is the roster file of a node. Only one process may write it; others read it with [Load]. It is safe
// for concurrent use.
type File struct {
	path string
	ca   *x509.Certificate

	mu      sync.Mutex // guards the fields below
	current roster.Roster
	err     error // why there is no current roster
	changed broadcast.Signal
}

// Open reads the file. If it is missing or damaged, [File.Now] returns the error, and the next roster taken
// replaces the file.
func Open(path string, ca *x509.Certificate) *File {
	f := &File{path: path, ca: ca}
	f.current, f.err = Load(path, ca)
	return f
}

// Load reads a roster file and verifies ca's signature. The error is an fs.ErrNotExist if the file does not
// exist.
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

// verify decodes a signed roster (roster.Signed as JSON) and checks it.
func verify(data []byte, ca *x509.Certificate) (roster.Roster, error) {
	if len(data) > maxSize {
		return roster.Roster{}, fmt.Errorf("%d bytes exceed the limit of %d", len(data), maxSize)
	}
	var s roster.Signed
	if err := strictjson.Decode(data, &s); err != nil {
		return roster.Roster{}, fmt.Errorf("decode roster: %w", err)
	}
	r, err := s.Open(ca)
	if err != nil {
		return roster.Roster{}, err
	}
	if !r.Usable() {
		return roster.Roster{}, fmt.Errorf("roster %d contains no API server or no join service", r.Generation)
	}
	return r, nil
}

// Take stores a signed roster and returns when it is on the disk. It refuses a roster of a lower generation
// ([ErrOlder]) and a different one of the same generation. Taking the current roster again changes nothing.
func (f *File) Take(signed []byte) (changed bool, err error) {
	r, err := verify(signed, f.ca)
	if err != nil {
		return false, fmt.Errorf("take roster: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil { // the file may have been created since
		f.current, f.err = Load(f.path, f.ca)
	}
	if f.err == nil {
		switch have := f.current; {
		case r.Generation < have.Generation:
			return false, fmt.Errorf("take roster %d: %w, which is %d", r.Generation, ErrOlder, have.Generation)
		case r.Generation == have.Generation && !r.Same(have):
			return false, fmt.Errorf("take roster %d: this node has a different roster of the same generation", r.Generation)
		case r.Generation == have.Generation:
			return false, nil
		}
	}
	if err := durable.WriteFile(f.path, 0o600, signed); err != nil {
		return false, fmt.Errorf("take roster %d: %w", r.Generation, err)
	}
	f.current, f.err = r, nil
	f.changed.Notify()
	return true, nil
}

// Read is the current roster without reading the file. The error is an fs.ErrNotExist if there never was one.
func (f *File) Read() (roster.Roster, error) {
	r, _, err := f.Now()
	return r, err
}

// Now is the current roster, and a channel that is closed when it changes.
func (f *File) Now() (r roster.Roster, changed <-chan struct{}, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current, f.changed.Wait(), f.err
}

// Generation is the generation of the current roster, 0 if there is none.
func (f *File) Generation() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current.Generation
}
