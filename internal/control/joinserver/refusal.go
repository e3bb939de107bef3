// SPDX-License-Identifier: Apache-2.0

package joinserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/rpc"
)

// refusal is a decision against the peer. Public is what it may know besides the id.
type refusal struct {
	reason Reason
	code   codes.Code
	detail string
	public string
}

func (r *refusal) Error() string { return fmt.Sprintf("refuse (%s): %s", r.reason, r.detail) }

// deny refuses for good: the same again gets the same answer.
func deny(reason Reason, format string, args ...any) error {
	return &refusal{reason: reason, code: codes.PermissionDenied, detail: fmt.Sprintf(format, args...)}
}

// tell is deny with words for the peer, which must not depend on anything secret.
func tell(reason Reason, public string) error {
	return &refusal{reason: reason, code: codes.FailedPrecondition, detail: public, public: public}
}

// tooMuch refuses for now.
func tooMuch(format string, args ...any) error {
	return &refusal{reason: TooMuch, code: codes.ResourceExhausted, detail: fmt.Sprintf(format, args...)}
}

// notYet ends the stream of a node that is being removed. It is no refusal for good: a machine that is asked to reset itself must
// not take it for leave to do so, for its etcd may count until the end of the removal, which may still be taken back.
func notYet(node string) error {
	return &refusal{reason: Removed, code: codes.Aborted, detail: "node " + node + " is being removed"}
}

// judge turns any error of a stream into the refusal that it is.
func judge(err error) *refusal {
	if r, ok := errors.AsType[*refusal](err); ok {
		return r
	}
	if r, ok := errors.AsType[*admission.Refusal](err); ok {
		return admitted(r)
	}
	if l, ok := errors.AsType[*lost](err); ok {
		return l.judge()
	}
	if _, ok := errors.AsType[*pki.ClockError](err); ok {
		return &refusal{reason: WrongClock, code: codes.Unavailable, detail: err.Error()}
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return &refusal{reason: Ended, code: codes.Unavailable, detail: err.Error()}
	}
	return &refusal{reason: Unavailable, code: codes.Unavailable, detail: err.Error()}
}

// admitted is a no of the records. A machine that has proven a key or a token is no stranger: of a version that does not fit it is
// told which, because only its owner can mend that.
func admitted(r *admission.Refusal) *refusal {
	no := &refusal{reason: Reason(r.Reason), code: codes.PermissionDenied, detail: r.Text}
	switch r.Reason {
	case admission.VersionBad, admission.VersionNewer, admission.VersionOlder:
		no.code, no.public = codes.FailedPrecondition, printable(r.Text, maxAuditDetail)
	case admission.KeyInUse, admission.AddressMoved: // the cluster counts on this key: nobody may take that for leave to reset the machine
		no.code = codes.FailedPrecondition
	}
	return no
}

// lost is a stream that broke, or whose other side sent what gRPC itself does not take.
type lost struct{ err error }

func (l *lost) Error() string { return l.err.Error() }
func (l *lost) Unwrap() error { return l.err }

func (l *lost) judge() *refusal {
	r := &refusal{reason: Ended, code: codes.Unavailable, detail: l.Error()}
	code := status.Code(l.err)
	if no, ok := errors.AsType[*rpc.Refusal](l.err); ok {
		code = no.Code
	}
	switch code {
	case codes.ResourceExhausted:
		r.reason, r.code = TooLarge, codes.ResourceExhausted
	case codes.Internal, codes.InvalidArgument, codes.Unimplemented:
		r.reason, r.code = Malformed, codes.InvalidArgument
	default:
		if errors.Is(l.err, io.EOF) {
			r.detail = "the machine ended the stream"
		}
	}
	return r
}

// end audits how a stream ended and gives the error for the peer: nothing but a code, an id and what it may know.
func (e *session) end(err error) error {
	if err == nil {
		return nil
	}
	r := judge(err)
	e.audit(r.reason, r.detail)
	public := r.public
	if public == "" {
		public = "refused"
		switch {
		case r.reason == WrongClock: // whoever is told has proven a right to join, and only a person can mend it
			public = "the clock of this control plane says " + e.Now().UTC().Format(time.RFC3339) + ", and it cannot sign certificates at that time"
		case r.code == codes.Unavailable:
			public = "not now"
		}
	}
	return &rpc.Refusal{Code: r.code, Reason: string(r.reason) + ": " + printable(r.detail, maxAuditDetail), Public: public, ID: e.entry.ID, WrongClock: r.reason == WrongClock}
}
