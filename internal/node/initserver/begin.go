// SPDX-License-Identifier: Apache-2.0

package initserver

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/node/lock"
)

const (
	minID     = 8
	maxID     = 64
	maxTicket = 8 << 20 // bytes
)

// begin keeps a request, claims the machine for it, and hands it to the one who works. The same request again is answered with
// where it stands. Whatever is refused has changed nothing.
func (s *Server) begin(id string, ticket []byte) (phase string, err error) {
	if err := checkID(id); err != nil {
		return "", refuse(codes.InvalidArgument, "%v", err)
	}
	if len(ticket) > maxTicket {
		return "", refuse(codes.InvalidArgument, "the ticket has %d bytes: %d are too many", len(ticket), maxTicket)
	}
	t, err := plan.DecodeTicket(ticket)
	if err != nil {
		return "", refuse(codes.InvalidArgument, "%v", err)
	}
	if t.Cluster != "" {
		return "", refuse(codes.InvalidArgument, "the ticket is for a node of cluster %s: init makes a cluster and takes none", t.Cluster)
	}
	sum := digest(ticket)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return "", refuse(codes.Unavailable, "the agent ends: ask again")
	}
	if s.req != nil && s.req.id == id {
		if s.req.rec.Digest != sum {
			return "", refuse(codes.FailedPrecondition, "request %s came with another ticket before: use a new id", id)
		}
		return s.req.feed.current(), nil
	}
	if state := s.cfg.Lock.State(); state.Phase != lock.Free {
		return "", refuse(codes.FailedPrecondition, "this machine is %s", state)
	}
	if s.req != nil && !s.req.feed.ended() {
		return "", refuse(codes.FailedPrecondition, "request %s has this machine", s.req.id)
	}
	return s.claimLocked(record{ID: id, Digest: sum, Ticket: ticket, Starts: 1})
}

// claimLocked keeps first and claims then: a claim whose request is nowhere could only be undone.
func (s *Server) claimLocked(rec record) (phase string, err error) {
	s.pass("keep request")
	if err := durable.Save(s.cfg.RequestFile, recordSchema, rec); err != nil {
		return "", refuse(codes.Unavailable, "keep the init request: %v", err)
	}
	s.pass("claim")
	err = s.cfg.Lock.Claim(lock.Init, rec.ID)
	var taken *lock.TakenError
	switch {
	case errors.As(err, &taken): // a join was quicker
		return "", refuse(codes.FailedPrecondition, "this machine is %s", taken.State)
	case errors.Is(err, lock.ErrInDoubt): // the claim may be on the disk: give it back before anybody else comes
		rec.Why = err.Error()
	case err != nil:
		return "", refuse(codes.Unavailable, "%v", err)
	}
	s.cfg.Log.Info("this machine is claimed", "by", lock.Init, "id", rec.ID)
	s.pass("claimed")
	s.req = newRequest(rec)
	s.begun <- s.req // has room: whoever had the claim before has left the channel empty
	return s.req.feed.current(), nil
}

func checkID(id string) error {
	good := len(id) >= minID && len(id) <= maxID
	for _, c := range []byte(id) {
		good = good && (c == '-' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z'))
	}
	if !good {
		return fmt.Errorf("the id has to be %d to %d characters of a-z, 0-9 and -", minID, maxID)
	}
	return nil
}
