// SPDX-License-Identifier: Apache-2.0

package joinserver

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/rpc"
)

// Entry is one decision in the audit log. Its texts are printable ASCII and short whatever a client has sent, so that an entry is one
// line in any log. It contains no token and no key material.
type Entry struct {
	At     time.Time
	ID     string // of the stream; a refused machine receives it, too
	Call   string // "join" or "sync"
	Peer   netip.AddrPort
	Key    pin.Pin // of the machine's key
	Node   string  // the record's name; before the record is known, the name that the machine claims
	Reason Reason
	Detail string // for people
}

func (e Entry) String() string {
	return fmt.Sprintf("%s %s id=%s peer=%s key=%s node=%q reason=%s detail=%q", e.At.UTC().Format(time.RFC3339Nano), e.Call, e.ID, e.Peer, e.Key, e.Node, e.Reason, e.Detail)
}

// Reason is why a decision was made. Entries also have the reasons of package admission.
type Reason string

// Reasons of decisions for a machine.
const (
	Granted   Reason = "granted"   // a ticket was sent
	Certified Reason = "certified" // a certificate was signed; one entry for each
	Synced    Reason = "synced"    // a node's stream has begun
	Moved     Reason = "moved"     // a worker has a new address, and its record was updated
	Permitted Reason = "permitted" // a control plane may start its etcd
	Promoted  Reason = "promoted"  // a control plane's etcd is a voter
	Waiting   Reason = "waiting"   // the machine was told to wait
	Ended     Reason = "ended"     // the client ended the stream
)

// Reasons for refusing a stream before any proof.
const (
	BadOrder    Reason = "order"     // a message out of order
	TooLarge    Reason = "too-large" // a message that exceeds its limit
	Malformed   Reason = "malformed" // a length or a character that Slipway never sends
	BadProtocol Reason = "protocol"
	BadCluster  Reason = "cluster"
	BadVerifier Reason = "verifier"
	BadAddress  Reason = "address"  // the reported address is not that of the connection
	BadKeyKind  Reason = "key-kind" // the machine's key is not ECDSA P-256
	OwnNode     Reason = "own-node" // this machine wants to join itself
)

// Reasons for refusing a proof.
const (
	BadSignature Reason = "signature" // not by this key, over this connection, nonce and hello
	Late         Reason = "late"      // after the nonce has expired
	BadEvidence  Reason = "evidence"  // refused by the verifier
)

// Reasons for refusing a certificate request.
const (
	BadWant      Reason = "csr-want"      // the node's plan has no such certificate that this service signs
	BadRequest   Reason = "csr-malformed" // not PKCS#10, or too large
	BadKey       Reason = "csr-key"       // not ECDSA P-256
	BadProof     Reason = "csr-signature" // not signed with the requested key
	BadSubject   Reason = "csr-subject"   // the subject must be empty: the plan sets it
	BadExtension Reason = "csr-extension" // the request must have nothing but a key
	KeyTaken     Reason = "csr-key-taken" // the key belongs to another certificate or node
)

// Reasons for refusing or ending a node's stream.
const (
	Stranger        Reason = "stranger"          // no record has the key
	OtherNode       Reason = "other-node"        // the record has another name
	Removed         Reason = "removed"           // the record was removed or is being removed
	NotControlPlane Reason = "not-control-plane" // a worker asks to join etcd
	TooMuch         Reason = "too-much"          // more streams or renewals than a node needs
)

// Reasons for which no decision was made.
const (
	WrongClock  Reason = "clock"       // at the time of its own clock, this control plane cannot sign
	Unavailable Reason = "unavailable" // a part of the cluster does not answer, or the service is misconfigured
)

// Limits of client-supplied text in audit entries, in bytes before quoting.
const (
	maxAuditName   = 80
	maxAuditDetail = 300
)

func (e *session) audit(reason Reason, detail string) {
	entry := e.entry
	entry.At, entry.Reason, entry.Detail = e.Now(), reason, printable(detail, maxAuditDetail)
	e.Audit(entry)
}

// printable quotes what is harmful in a terminal or a log, and shortens the text to limit bytes before quoting.
func printable(text string, limit int) string {
	cut := len(text) > limit
	if cut {
		text = text[:limit]
	}
	quoted := strconv.QuoteToASCII(text)
	quoted = strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
	if cut {
		quoted += "…"
	}
	return quoted
}

func newID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return hex.EncodeToString(b[:])
}

// refusal is a decision against the peer. Public is what the peer is told in addition to the ID.
type refusal struct {
	reason Reason
	code   codes.Code
	detail string
	public string
}

func (r *refusal) Error() string { return fmt.Sprintf("refuse (%s): %s", r.reason, r.detail) }

// deny refuses permanently: the same request gets the same answer.
func deny(reason Reason, format string, args ...any) error {
	return &refusal{reason: reason, code: codes.PermissionDenied, detail: fmt.Sprintf(format, args...)}
}

// tooMuch refuses for now.
func tooMuch(format string, args ...any) error {
	return &refusal{reason: TooMuch, code: codes.ResourceExhausted, detail: fmt.Sprintf(format, args...)}
}

// beingRemoved ends the stream of a node that is being removed. The code is not PermissionDenied, because a machine may take that as
// confirmation that it can reset itself. Its etcd member may still count until the removal is complete, and the removal may be undone.
func beingRemoved(node string) error {
	return &refusal{reason: Removed, code: codes.Aborted, detail: "node " + node + " is being removed"}
}

// lost is an error of a stream: the connection broke, or gRPC refused a message.
type lost struct{ err error }

func (l *lost) Error() string { return l.err.Error() }
func (l *lost) Unwrap() error { return l.err }

// refusalOf turns any error of a session into a refusal.
func refusalOf(err error) *refusal {
	if r, ok := errors.AsType[*refusal](err); ok {
		return r
	}
	if r, ok := errors.AsType[*admission.Refusal](err); ok {
		return refusalOfRecords(r)
	}
	if l, ok := errors.AsType[*lost](err); ok {
		return refusalOfStream(l.err)
	}
	if _, ok := errors.AsType[*pki.ClockError](err); ok {
		return &refusal{reason: WrongClock, code: codes.Unavailable, detail: err.Error()}
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return &refusal{reason: Ended, code: codes.Unavailable, detail: err.Error()}
	}
	return &refusal{reason: Unavailable, code: codes.Unavailable, detail: err.Error()}
}

// refusalOfRecords translates a refusal of the records. The machine has proven a key or a token by then, so it is told about a
// version that does not match: only its owner can fix that.
func refusalOfRecords(r *admission.Refusal) *refusal {
	out := &refusal{reason: Reason(r.Reason), code: codes.PermissionDenied, detail: r.Text}
	switch r.Reason {
	case admission.VersionBad, admission.VersionNewer, admission.VersionOlder:
		out.code, out.public = codes.FailedPrecondition, printable(r.Text, maxAuditDetail)
	case admission.KeyInUse, admission.AddressMoved: // the key is in use: a machine must not take this as permission to reset itself
		out.code = codes.FailedPrecondition
	}
	return out
}

func refusalOfStream(err error) *refusal {
	code := status.Code(err)
	if r, ok := errors.AsType[*rpc.Refusal](err); ok {
		code = r.Code
	}
	switch {
	case code == codes.ResourceExhausted:
		return &refusal{reason: TooLarge, code: codes.ResourceExhausted, detail: err.Error()}
	case code == codes.Internal, code == codes.InvalidArgument, code == codes.Unimplemented:
		return &refusal{reason: Malformed, code: codes.InvalidArgument, detail: err.Error()}
	case errors.Is(err, io.EOF):
		return &refusal{reason: Ended, code: codes.Unavailable, detail: "the machine ended the stream"}
	}
	return &refusal{reason: Ended, code: codes.Unavailable, detail: err.Error()}
}

// end audits why a stream ended with an error, and returns the error for the peer: a code, the ID, and what the peer may know.
func (e *session) end(err error) error {
	if err == nil {
		return nil
	}
	r := refusalOf(err)
	e.audit(r.reason, r.detail)
	public := r.public
	switch {
	case public != "":
	case r.reason == WrongClock: // the peer has proven that it may join, and its owner has to know
		public = "the clock of this control plane says " + e.Now().UTC().Format(time.RFC3339) + ", and it cannot sign certificates at that time"
	case r.code == codes.Unavailable:
		public = "not now"
	default:
		public = "refused"
	}
	return &rpc.Refusal{Code: r.code, Reason: string(r.reason) + ": " + printable(r.detail, maxAuditDetail), Public: public, ID: e.entry.ID, WrongClock: r.reason == WrongClock}
}
