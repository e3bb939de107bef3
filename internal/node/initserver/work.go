// SPDX-License-Identifier: Apache-2.0

package initserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/sleep"
)

// Resume goes on with the request that has claimed this machine, if one has, and returns when it is over: committed, or undone.
// It needs no listener. Run does it by itself; the two must not run at once.
func (s *Server) Resume(ctx context.Context) error {
	state := s.cfg.Lock.State()
	if state.Phase != lock.Claimed || state.By != lock.Init {
		return nil
	}
	s.mu.Lock()
	r := s.req
	s.mu.Unlock()
	if r == nil || r.id != state.ID {
		return fmt.Errorf("go on with the init request: this machine is %s, which was not so when the server was made", state)
	}
	if r.rec.Why == "" && r.rec.Starts >= maxStarts {
		return s.undo(ctx, r, fmt.Errorf("the agent has died %d times while it worked on this", r.rec.Starts))
	}
	if r.rec.Why != "" {
		return s.carry(ctx, r)
	}
	if err := s.keep(r, func(rec *record) { rec.Starts++ }); err != nil {
		s.cfg.Log.Warn("count the starts of an init request", "error", err)
	}
	s.cfg.Log.Info("the init request goes on", "id", r.id, "start", r.rec.Starts)
	return s.carry(ctx, r)
}

// work carries out one request after the other; each has the claim.
func (s *Server) work(ctx context.Context) error {
	if err := s.Resume(ctx); err != nil {
		return err
	}
	for {
		select {
		case r := <-s.begun:
			if err := s.carry(ctx, r); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// carry brings a claimed request to its end. It returns an error only when ctx ended before: then nothing is undone, and the next
// start of the agent goes on.
func (s *Server) carry(ctx context.Context, r *request) error {
	if r.rec.Why != "" { // it has failed before, and the cleaning was not finished
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
	r.feed.add(Event{Phase: phaseClaimed, Text: begins(r.rec.Starts)})
	ticket, err := plan.DecodeTicket(r.rec.Ticket)
	if err != nil {
		return err
	}
	late := fmt.Errorf("the cluster did not come to be within %s", s.cfg.Deadline)
	limited, cancel := context.WithTimeoutCause(ctx, s.cfg.Deadline, late)
	defer cancel()
	s.pass("install")
	if err := s.cfg.Machine.Install(limited, ticket); err != nil {
		return because(limited, fmt.Errorf("install: %w", err))
	}
	s.pass("installed")
	r.feed.add(Event{Phase: phaseInstalled})
	result, err := s.cfg.Machine.Established(limited, func(e Event) {
		e.Phase, e.outcome = "", nil // those are not the machine's to tell
		r.feed.add(e)
	})
	if err != nil {
		return because(limited, err)
	}
	if result.Cluster == "" || result.Node == "" || len(result.Kubeconfig) == 0 {
		return errors.New("the cluster stands without an id, a node's name or a kubeconfig: this is a bug in slipway")
	}
	if err := s.keepResult(limited, r, result); err != nil {
		return err
	}
	s.pass("commit")
	if err := s.commit(ctx, limited, r, result); err != nil {
		return err
	}
	s.pass("committed")
	s.cfg.Log.Info("this machine is committed", "id", r.id, "cluster", result.Cluster, "node", result.Node)
	r.feed.end(s.outcome(r.rec))
	return nil
}

// keepResult tries until the deadline: a cluster that stands is not taken down for a disk that is full for a while.
func (s *Server) keepResult(limited context.Context, r *request, result Result) error {
	for try := 0; ; try++ {
		err := s.keep(r, func(rec *record) { rec.Result = &result })
		if err == nil {
			return nil
		}
		r.feed.add(Event{Text: err.Error()})
		if sleep.For(limited, s.cfg.Pause(try)) != nil {
			return err
		}
	}
}

// commit returns an error only if the machine is certainly not committed and that will not change before the deadline, or ctx ended.
// While it is in doubt, nothing may be wiped, deadline or not.
func (s *Server) commit(ctx, limited context.Context, r *request, result Result) error {
	for try := 0; ; try++ {
		err := s.cfg.Lock.Commit(r.id, result.Cluster, result.Node)
		var taken *lock.TakenError
		if err == nil || errors.As(err, &taken) || limited.Err() != nil && !errors.Is(err, lock.ErrInDoubt) {
			return err
		}
		s.cfg.Log.Error("commit this machine; it is tried until the disk has an answer", "error", err)
		r.feed.add(Event{Text: err.Error()})
		if err := sleep.For(ctx, s.cfg.Pause(try)); err != nil {
			return err
		}
	}
}

// undo makes the machine free again. That the request has failed is kept first: an agent that dies in the middle of it must not
// begin the request anew on a machine that is half clean.
func (s *Server) undo(ctx context.Context, r *request, why error) error {
	s.cfg.Log.Error("the init request failed, the machine is cleaned", "id", r.id, "error", why)
	r.feed.add(Event{Text: "it failed, the machine is cleaned: " + why.Error()})
	failed := func(rec *record) { rec.Why, rec.Ticket, rec.Result = why.Error(), nil, nil }
	s.pass("fail")
	kept := s.keep(r, failed)
	s.pass("wipe")
	err := s.insist(ctx, r, "clean the machine", func() error {
		limited, cancel := context.WithTimeout(ctx, s.cfg.Deadline)
		defer cancel()
		return s.cfg.Machine.Wipe(limited)
	})
	if err != nil {
		return err
	}
	if kept != nil { // a full disk has room again
		kept = s.keep(r, failed)
	}
	if kept != nil {
		s.cfg.Log.Warn("why the init request failed is forgotten when the agent ends", "error", kept)
		s.mu.Lock()
		failed(&r.rec)
		s.mu.Unlock()
	}
	s.pass("release")
	if err := s.insist(ctx, r, "give the machine back", func() error { return s.release(r) }); err != nil {
		return err
	}
	s.pass("released")
	r.feed.end(s.outcome(r.rec))
	return nil
}

// release is over as well when the claim turns out not to be there.
func (s *Server) release(r *request) error {
	err := s.cfg.Lock.Release(r.id)
	var taken *lock.TakenError
	if errors.As(err, &taken) {
		s.cfg.Log.Warn("there is no claim to give back", "id", r.id, "lock", taken.State.String())
		return nil
	}
	return err
}

// insist tries until it works. Between a claim and a clean machine there is nothing else to do, and everybody can see it.
func (s *Server) insist(ctx context.Context, r *request, what string, do func() error) error {
	for try := 0; ; try++ {
		err := do()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		s.cfg.Log.Error(what+"; it is tried again", "error", err, "try", try+1)
		r.feed.add(Event{Text: fmt.Sprintf("%s (try %d): %s", what, try+1, err)})
		if err := sleep.For(ctx, s.cfg.Pause(try)); err != nil {
			return err
		}
	}
}

func begins(starts int) string {
	if starts <= 1 {
		return ""
	}
	return fmt.Sprintf("the agent ended and goes on with the request (start %d)", starts)
}

// because puts the deadline in front of an error that it has caused.
func because(limited context.Context, err error) error {
	if limited.Err() == nil {
		return err
	}
	return fmt.Errorf("%w: %w", context.Cause(limited), err)
}

func pause(try int) time.Duration {
	return min(30*time.Second, 100*time.Millisecond<<min(try, 10))
}
