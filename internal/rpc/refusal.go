// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"crypto/rand"
	"encoding/hex"
	"net/netip"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Refusal is the one way for rules and handlers to say no. Every other error is our own fault and reaches the peer as Internal,
// without its text.
type Refusal struct {
	Code   codes.Code
	Reason string // for the audit: the truth
	Public string // optional: what the peer may know of it
	ID     string // optional: under which the handler's own audit knows it; one is made otherwise
}

func (r *Refusal) Error() string { return r.Reason }

// GRPCStatus keeps the reason in the house even where gRPC itself translates the error.
func (r *Refusal) GRPCStatus() *status.Status {
	code, public := r.Code, r.Public
	if code == codes.OK {
		code = codes.PermissionDenied
	}
	if public == "" {
		public = "refused"
	}
	return status.New(code, public)
}

// Refused is a refusal as Audit hears of it.
type Refused struct {
	ID     string // which the peer has been told, too, when it could be
	At     time.Time
	Peer   Peer   // its key is empty when the refusal came before the handshake's end
	Method string // full method; "" when the refusal came before a call
	Code   codes.Code
	Reason string
	Untold int // refusals before this one that Audit has not heard of, because there were too many (Limits.Reports)
}

// auditor hands refusals on, as many as the gate lets pass.
type auditor struct {
	gate *gate
	hear func(Refused)
}

func (a auditor) refused(from netip.Addr, r Refused) {
	untold, ok := a.gate.tell(from, r.At)
	if !ok {
		return
	}
	r.Untold = untold
	a.hear(r)
}

func newID() string {
	var b [6]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	return hex.EncodeToString(b[:])
}
