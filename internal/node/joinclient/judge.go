// SPDX-License-Identifier: Apache-2.0

package joinclient

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/attest"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/rpc"
)

// The ways in which a round ends without a grant.
type (
	pause struct { // nobody is due, or nobody answered
		until  time.Duration
		status Status
	}
	broken struct { // the talk with an endpoint ended
		at  netip.AddrPort
		err error
	}
	local   struct{ err error }   // this machine's own fault
	strange struct{ what string } // an answer that no service of this cluster gives
)

func (p *pause) Error() string   { return "nobody answers" }
func (b *broken) Error() string  { return b.at.String() + ": " + b.err.Error() }
func (b *broken) Unwrap() error  { return b.err }
func (l *local) Error() string   { return l.err.Error() }
func (l *local) Unwrap() error   { return l.err }
func (s *strange) Error() string { return s.what }

func odd(format string, args ...any) error { return &strange{fmt.Sprintf(format, args...)} }

// refusal tells a no from an accident: the same question again gets the same answer.
func refusal(err error) (string, bool) {
	if _, ok := errors.AsType[*strange](err); ok {
		return err.Error(), true
	}
	var no interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &no) {
		return "", false
	}
	switch s := no.GRPCStatus(); s.Code() {
	case codes.PermissionDenied, codes.FailedPrecondition, codes.InvalidArgument, codes.Unauthenticated, codes.Unimplemented, codes.NotFound:
		return s.Message(), true
	}
	return "", false
}

// failed takes note of an endpoint that did not get as far as its challenge.
func (j *joining) failed(at netip.AddrPort, err error) {
	if no, ok := refusal(err); ok {
		j.Log.Warn("join refused", "endpoint", at, "why", no)
		j.places.refused(at, no)
		return
	}
	if u, ok := errors.AsType[*untimely](err); ok {
		j.places.untimely(at, u.Error())
		return
	}
	if rpc.IsUntrusted(err) {
		j.Log.Error("this is not the cluster's join service: go on without it", "endpoint", at, "pin", j.Pin, "why", plainly(err))
		j.places.mistrusted(at, plainly(err))
		return
	}
	j.places.failed(at, plainly(err))
}

// judge says what is waited for after a round, and how long it is no use to ask again.
func (j *joining) judge(err error) time.Duration {
	if p, ok := errors.AsType[*pause](err); ok {
		j.says.tell(p.status)
		return p.until
	}
	if w, ok := errors.AsType[*wait.Error](err); ok {
		j.refused, j.slow = 0, 0
		j.says.tell(Status{For: w.For})
		return waitPause
	}
	b, ok := errors.AsType[*broken](err)
	if !ok {
		b = &broken{err: err}
	}
	if u, ok := errors.AsType[*untimely](err); ok {
		j.places.untimely(b.at, u.Error())
		j.says.tell(clockStatus(u.Error()))
		return 0
	}
	if l, ok := errors.AsType[*local](err); ok {
		j.says.tell(Status{For: wait.For{What: "this machine to make its keys", Who: "this machine"}, Detail: l.Error()})
		j.refused++
		return j.places.pause(pauseFirst, pauseMost, j.refused-1)
	}
	if no, ok := refusal(b.err); ok {
		return j.denied(b.at, no)
	}
	j.places.failed(b.at, plainly(b.err))
	j.says.tell(j.unreachable(j.Endpoints()))
	return 0
}

// denied: only somebody else can mend it, so it is asked again slowly. Somebody may be about to where a record is all that is missing.
func (j *joining) denied(at netip.AddrPort, what string) time.Duration {
	j.Log.Warn("join refused", "endpoint", at, "why", what)
	j.says.tell(refusalStatus(at, what))
	j.refused++
	first := refusedPause
	if j.Prover.Kind() == attest.Key {
		first = recordPause
	}
	return j.places.pause(first, refusedMost, j.refused-1)
}

func refusalStatus(at netip.AddrPort, what string) Status {
	return Status{For: wait.For{What: "leave to join the cluster", Who: "the cluster's operator: the audit of " + at.String() + " says why"}, Detail: what}
}

// unreachable is what is waited for while nobody lets the machine in: an answer, or another answer.
func (j *joining) unreachable(endpoints []netip.AddrPort) Status {
	endpoints = unique(endpoints)
	if len(endpoints) == 0 {
		return Status{For: wait.For{What: "the address of a join service", Who: "slipway join --endpoint HOST:PORT"}}
	}
	if what, ok := j.places.clock(endpoints); ok {
		return clockStatus(what)
	}
	if at, no, ok := j.places.no(endpoints); ok {
		return refusalStatus(at, no)
	}
	texts := make([]string, len(endpoints))
	for i, at := range endpoints {
		texts[i] = at.String()
	}
	return Status{
		For: wait.For{What: "a join service of cluster " + j.Pin.ClusterID(), Who: "a control plane at " + strings.Join(texts, ", ")}, Detail: j.places.heard(endpoints),
	}
}

// plainly leaves gRPC's frame away.
func plainly(err error) string {
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

// fromWire reads what a join service says is waited for.
func fromWire(w *joinv1.Wait) wait.For {
	out := wait.For{What: w.GetWhat(), Who: w.GetWho()}
	if nano := w.GetSinceUnixNano(); nano > 0 {
		out.Since = time.Unix(0, nano)
	}
	return out
}
