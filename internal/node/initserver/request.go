// SPDX-License-Identifier: Apache-2.0

package initserver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"

	"google.golang.org/grpc/codes"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/sleep"
)

const (
	minID     = 8
	maxID     = 64
	maxTicket = 8 << 20 // bytes

	recordSchema = 1

	// maxStarts ends a request that crashes every agent that continues it. Power cuts and restarts stay far below.
	maxStarts = 20
)

// record is a request on the disk. Whether the request holds the claim or is committed is recorded in the node lock only.
type record struct {
	ID     string  `json:"id"`
	Digest string  `json:"digest"`           // SHA-256 of the ticket as it was received
	Ticket []byte  `json:"ticket,omitempty"` // plan.Ticket, JSON
	Starts int     `json:"starts"`           // number of agents that have worked on it
	Why    string  `json:"why,omitempty"`    // why it failed; a failed request is never restarted
	Result *Result `json:"result,omitempty"` // valid once the node lock is committed
}

// request is a request in memory.
type request struct {
	id   string
	rec  record // changed by the goroutine that works on it only, under the server's mu
	feed *feed
}

func newRequest(rec record) *request { return &request{id: rec.ID, rec: rec, feed: newFeed()} }

// loadRequest returns the request that has claimed or committed the machine, or the last one if it failed; else nil.
func (s *Server) loadRequest(state lock.State) (*request, error) {
	var rec record
	_, err := durable.Read(s.cfg.RequestFile, recordSchema, &rec)
	gone := errors.Is(err, fs.ErrNotExist) || errors.Is(err, durable.ErrDamaged)
	switch {
	case state.Phase == lock.Claimed && state.By == lock.Init:
		if err != nil && !gone { // another version may be able to read it
			return nil, fmt.Errorf("read init request %s, which has claimed this machine: %w", state.ID, err)
		}
		if gone || rec.ID != state.ID {
			rec = record{ID: state.ID, Why: "the machine has lost the request and was wiped: send it again with a new id"}
		}
		return newRequest(rec), nil
	case err != nil:
		if !errors.Is(err, fs.ErrNotExist) {
			s.cfg.Log.Warn("an old init request is unreadable and is ignored", "error", err)
		}
		return nil, nil
	case state.Phase == lock.Free && rec.Why == "": // the agent ended before the claim
		return nil, nil
	case state.Phase == lock.Committed && (state.By != lock.Init || rec.ID != state.ID || rec.Result == nil):
		return nil, nil
	case state.Phase == lock.Committed:
		rec.Why = ""
	}
	r := newRequest(rec)
	r.feed.end(lastEvent(rec))
	return r, nil
}

// lastEvent is the last event of a request that has ended.
func lastEvent(rec record) Event {
	if rec.Why != "" {
		return Event{Phase: phaseFailed, outcome: &outcome{Why: rec.Why}}
	}
	return Event{Phase: phaseCommitted, outcome: &outcome{Result: *rec.Result}}
}

// store changes the record and returns when that is on the disk. After an error, the record is unchanged.
func (s *Server) store(r *request, change func(*record)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := r.rec
	change(&next)
	s.pass("keep")
	if err := durable.Save(s.cfg.RequestFile, recordSchema, next); err != nil {
		return fmt.Errorf("write init request: %w", err)
	}
	s.pass("kept")
	r.rec = next
	return nil
}

// begin stores a new request and claims the machine for it. If the request is known, it returns its phase. A refused request changes
// nothing.
func (s *Server) begin(id string, ticket []byte) (phase string, err error) {
	if !validID(id) {
		return "", refuse(codes.InvalidArgument, "invalid request id: want %d to %d characters of a-z, 0-9 and -", minID, maxID)
	}
	if len(ticket) > maxTicket {
		return "", refuse(codes.InvalidArgument, "the ticket has %d bytes, at most %d are allowed", len(ticket), maxTicket)
	}
	t, err := plan.DecodeTicket(ticket)
	if err != nil {
		return "", refuse(codes.InvalidArgument, "%v", err)
	}
	if t.Cluster != "" {
		return "", refuse(codes.InvalidArgument, "the ticket is for a node of cluster %s: init needs a ticket without a cluster", t.Cluster)
	}
	sum := sha256.Sum256(ticket)
	digest := hex.EncodeToString(sum[:])
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return "", refuse(codes.Unavailable, "the agent is stopping: retry")
	}
	if s.req != nil && s.req.id == id {
		if s.req.rec.Digest != digest {
			return "", refuse(codes.FailedPrecondition, "request %s was sent with a different ticket before: use a new id", id)
		}
		return s.req.feed.current(), nil
	}
	if state := s.cfg.Lock.State(); state.Phase != lock.Free {
		return "", refuse(codes.FailedPrecondition, "this machine is %s", state)
	}
	if s.req != nil && !s.req.feed.ended() {
		return "", refuse(codes.FailedPrecondition, "request %s is in progress on this machine", s.req.id)
	}
	return s.claimLocked(record{ID: id, Digest: digest, Ticket: ticket, Starts: 1})
}

func validID(id string) bool {
	ok := len(id) >= minID && len(id) <= maxID
	for _, c := range []byte(id) {
		ok = ok && (c == '-' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z'))
	}
	return ok
}

// claimLocked stores the request before the claim: a claim without its request could only be undone.
func (s *Server) claimLocked(rec record) (phase string, err error) {
	s.pass("keep request")
	if err := durable.Save(s.cfg.RequestFile, recordSchema, rec); err != nil {
		return "", refuse(codes.Unavailable, "write init request: %v", err)
	}
	s.pass("claim")
	err = s.cfg.Lock.Claim(lock.Init, rec.ID)
	var taken *lock.TakenError
	switch {
	case errors.As(err, &taken): // a join was faster
		return "", refuse(codes.FailedPrecondition, "this machine is %s", taken.State)
	case errors.Is(err, lock.ErrInDoubt): // the claim may be on the disk: release it before the next request
		rec.Why = err.Error()
	case err != nil:
		return "", refuse(codes.Unavailable, "%v", err)
	}
	s.cfg.Log.Info("claimed this machine", "by", lock.Init, "id", rec.ID)
	s.pass("claimed")
	s.req = newRequest(rec)
	s.claimed <- s.req // does not block: the previous request was received before its claim ended
	return s.req.feed.current(), nil
}

// work carries out the requests that claim the machine, one after another.
func (s *Server) work(ctx context.Context) error {
	if err := s.Resume(ctx); err != nil {
		return err
	}
	for {
		select {
		case r := <-s.claimed:
			if err := s.carryOut(ctx, r); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Resume continues the request that has claimed this machine, if there is one, until it is committed or undone. It needs no
// listener. Run calls it; do not call both at the same time.
func (s *Server) Resume(ctx context.Context) error {
	state := s.cfg.Lock.State()
	if state.Phase != lock.Claimed || state.By != lock.Init {
		return nil
	}
	s.mu.Lock()
	r := s.req
	s.mu.Unlock()
	if r == nil || r.id != state.ID {
		return fmt.Errorf("continue init request: this machine is %s, which has changed since the server was created", state)
	}
	if r.rec.Why == "" && r.rec.Starts >= maxStarts {
		return s.undo(ctx, r, fmt.Errorf("the agent has ended %d times during this request", r.rec.Starts))
	}
	if r.rec.Why == "" {
		if err := s.store(r, func(rec *record) { rec.Starts++ }); err != nil {
			s.cfg.Log.Warn("count the starts of an init request", "error", err)
		}
		s.cfg.Log.Info("continuing the init request", "id", r.id, "start", r.rec.Starts)
	}
	return s.carryOut(ctx, r)
}

// carryOut commits or undoes a request that has claimed the machine. It returns an error only if ctx ends first; then nothing is
// undone, and the next start of the agent continues.
func (s *Server) carryOut(ctx context.Context, r *request) error {
	if r.rec.Why != "" { // it has failed before, but the wipe is not complete
		return s.undo(ctx, r, errors.New(r.rec.Why))
	}
	err := s.establish(ctx, r)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return s.undo(ctx, r, err)
}

func (s *Server) establish(ctx context.Context, r *request) error {
	text := ""
	if r.rec.Starts > 1 {
		text = fmt.Sprintf("the agent was restarted and continues the request (start %d)", r.rec.Starts)
	}
	r.feed.add(Event{Phase: phaseClaimed, Text: text})
	ticket, err := plan.DecodeTicket(r.rec.Ticket)
	if err != nil {
		return err
	}
	late := fmt.Errorf("the cluster was not ready within %s", s.cfg.Deadline)
	limited, cancel := context.WithTimeoutCause(ctx, s.cfg.Deadline, late)
	defer cancel()
	because := func(err error) error { // names the deadline as the cause of the errors that follow it
		if limited.Err() == nil {
			return err
		}
		return fmt.Errorf("%w: %w", context.Cause(limited), err)
	}
	s.pass("install")
	if err := s.cfg.Machine.Install(limited, ticket); err != nil {
		return because(fmt.Errorf("install: %w", err))
	}
	s.pass("installed")
	r.feed.add(Event{Phase: phaseInstalled})
	result, err := s.cfg.Machine.Established(limited, func(e Event) {
		e.Phase, e.outcome = "", nil // only the server sets those
		r.feed.add(e)
	})
	if err != nil {
		return because(err)
	}
	if result.Cluster == "" || result.Node == "" || len(result.Kubeconfig) == 0 {
		return errors.New("the cluster is ready, but its id, node name or kubeconfig is missing: this is a bug in slipway")
	}
	for try := 0; ; try++ { // a disk that is full for a while must not destroy a cluster that is ready
		err := s.store(r, func(rec *record) { rec.Result = &result })
		if err == nil {
			break
		}
		r.feed.add(Event{Text: err.Error()})
		if sleep.For(limited, s.cfg.Pause(try)) != nil {
			return err
		}
	}
	s.pass("commit")
	if err := s.commit(ctx, limited, r, result); err != nil {
		return err
	}
	s.pass("committed")
	s.cfg.Log.Info("committed this machine", "id", r.id, "cluster", result.Cluster, "node", result.Node)
	r.feed.end(lastEvent(r.rec))
	return nil
}

// commit returns an error only if ctx ends, or if the machine is certainly not committed and the claim is lost or the deadline
// (limited) has passed. While the lock is in doubt it retries without a limit, because a committed machine must not be wiped.
func (s *Server) commit(ctx, limited context.Context, r *request, result Result) error {
	for try := 0; ; try++ {
		err := s.cfg.Lock.Commit(r.id, result.Cluster, result.Node)
		var taken *lock.TakenError
		if err == nil || errors.As(err, &taken) || limited.Err() != nil && !errors.Is(err, lock.ErrInDoubt) {
			return err
		}
		s.cfg.Log.Error("commit this machine, retrying until the disk responds", "error", err)
		r.feed.add(Event{Text: err.Error()})
		if err := sleep.For(ctx, s.cfg.Pause(try)); err != nil {
			return err
		}
	}
}

// undo makes the machine free again. It stores the failure first: after a crash during the wipe, the next agent must not restart the
// request on a partly wiped machine.
func (s *Server) undo(ctx context.Context, r *request, why error) error {
	s.cfg.Log.Error("the init request failed, wiping the machine", "id", r.id, "error", why)
	r.feed.add(Event{Text: "the request failed, wiping the machine: " + why.Error()})
	failed := func(rec *record) { rec.Why, rec.Ticket, rec.Result = why.Error(), nil, nil }
	s.pass("fail")
	stored := s.store(r, failed)
	s.pass("wipe")
	err := s.retry(ctx, r, "wipe the machine", func() error {
		limited, cancel := context.WithTimeout(ctx, s.cfg.Deadline)
		defer cancel()
		return s.cfg.Machine.Wipe(limited)
	})
	if err != nil {
		return err
	}
	if stored != nil { // the wipe may have freed disk space
		stored = s.store(r, failed)
	}
	if stored != nil {
		s.cfg.Log.Warn("the error of the init request is lost when the agent ends", "error", stored)
		s.mu.Lock()
		failed(&r.rec)
		s.mu.Unlock()
	}
	s.pass("release")
	if err := s.retry(ctx, r, "release the machine", func() error { return s.release(r) }); err != nil {
		return err
	}
	s.pass("released")
	r.feed.end(lastEvent(r.rec))
	return nil
}

// release also succeeds if the request does not hold the claim.
func (s *Server) release(r *request) error {
	err := s.cfg.Lock.Release(r.id)
	var taken *lock.TakenError
	if errors.As(err, &taken) {
		s.cfg.Log.Warn("the request does not hold the claim", "id", r.id, "lock", taken.State.String())
		return nil
	}
	return err
}

// retry calls do until it succeeds or ctx ends, and reports its errors.
func (s *Server) retry(ctx context.Context, r *request, what string, do func() error) error {
	for try := 0; ; try++ {
		err := do()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		s.cfg.Log.Error(what+", retrying", "error", err, "try", try+1)
		r.feed.add(Event{Text: fmt.Sprintf("%s (try %d): %s", what, try+1, err)})
		if err := sleep.For(ctx, s.cfg.Pause(try)); err != nil {
			return err
		}
	}
}
