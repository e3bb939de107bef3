// SPDX-License-Identifier: Apache-2.0

package initserver

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"

	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/node/lock"
)

// record is a request on the disk. Whether it holds the claim, and whether it is committed, is what the lock says and not asked
// here.
type record struct {
	ID     string  `json:"id"`
	Digest string  `json:"digest"`           // of the ticket as it came
	Ticket []byte  `json:"ticket,omitempty"` // plan.Ticket, JSON
	Starts int     `json:"starts"`           // how many agents have begun with it
	Why    string  `json:"why,omitempty"`    // why it failed; it is never begun again
	Result *Result `json:"result,omitempty"` // what it comes to; it counts when the lock is committed
}

const (
	recordSchema = 1

	// maxStarts ends a request that kills every agent that takes it up. Power cuts and restarts stay far below.
	maxStarts = 20
)

// request is a record and what happens with it.
type request struct {
	id   string
	rec  record // changed only by the one goroutine that works on it, under the server's mu
	feed *feed
}

func newRequest(rec record) *request { return &request{id: rec.ID, rec: rec, feed: newFeed()} }

// recall finds the request that the lock speaks of, or the last one that failed.
func (s *Server) recall(state lock.State) (*request, error) {
	var rec record
	_, err := durable.Read(s.cfg.RequestFile, recordSchema, &rec)
	gone := errors.Is(err, fs.ErrNotExist) || errors.Is(err, durable.ErrDamaged)
	switch {
	case state.Phase == lock.Claimed && state.By == lock.Init:
		if err != nil && !gone { // it may be readable: by another version, or later
			return nil, fmt.Errorf("read the init request %s, which has this machine: %w", state.ID, err)
		}
		if gone || rec.ID != state.ID {
			rec = record{ID: state.ID, Why: "the machine has lost the request; it was cleaned: send it again with a new id"}
		}
		return newRequest(rec), nil
	case err != nil:
		if !errors.Is(err, fs.ErrNotExist) {
			s.cfg.Log.Warn("an old init request cannot be read, and is not needed", "error", err)
		}
		return nil, nil
	case state.Phase == lock.Free && rec.Why == "": // it has not come so far as to claim the machine
		return nil, nil
	case state.Phase == lock.Committed && (state.By != lock.Init || rec.ID != state.ID || rec.Result == nil):
		return nil, nil
	case state.Phase == lock.Committed:
		rec.Why = ""
	}
	r := newRequest(rec)
	r.feed.end(s.outcome(rec))
	return r, nil
}

// outcome is the last event of a request that is over.
func (s *Server) outcome(rec record) Event {
	if rec.Why != "" {
		return Event{Phase: phaseFailed, outcome: &outcome{Why: rec.Why}}
	}
	return Event{Phase: phaseCommitted, outcome: &outcome{Result: *rec.Result}}
}

// keep makes a change of the record durable; when that fails, nothing has changed.
func (s *Server) keep(r *request, change func(*record)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := r.rec
	change(&next)
	s.pass("keep")
	if err := durable.Save(s.cfg.RequestFile, recordSchema, next); err != nil {
		return fmt.Errorf("keep the init request: %w", err)
	}
	s.pass("kept")
	r.rec = next
	return nil
}

func digest(ticket []byte) string {
	sum := sha256.Sum256(ticket)
	return hex.EncodeToString(sum[:])
}
