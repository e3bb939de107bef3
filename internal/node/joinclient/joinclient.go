// SPDX-License-Identifier: Apache-2.0

// Package joinclient is a machine's client of the join service: it asks until the machine is admitted, and afterwards keeps the node
// connected to a control plane. It trusts a server only if its certificate chain ends in the pinned join CA, sends no secret before
// that check, and checks everything in a grant against the pin. It never plans, never writes a file, and never gives up: it reports
// what it waits for, since when, and who provides it.
//
// Read [Config] and [Join] first, then [Sync].
//
//	grant, err := joinclient.Join(ctx, joinclient.Config{Endpoints: known, Pin: pin, Prover: prover, Key: machineKey, …})
//	grant.Ticket.Plan.Node // "dev-worker-0": the node's name in the cluster's records
package joinclient

import (
	"context"
	"crypto/ecdsa"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/attest"
	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/rpc"
	"github.com/slipway-project/slipway/internal/sleep"
)

// Config is what a machine needs to join.
type Config struct {
	Endpoints  func() []netip.AddrPort // returns the join services that are known now
	Pin        pin.Pin                 // of the cluster's join CA
	Key        *ecdsa.PrivateKey       // the machine's
	Keys       Keys
	Prover     attest.Prover // proves the machine's right to join
	Facts      machine.Facts // their address must be the source address of the connections
	Kubernetes string        // version in the component store; empty: the machine installs the cluster's version
	Slipway    string
	Log        *slog.Logger
	Report     func(Status) // called when the status changes, one call at a time

	Node   string           // optional: the name that the machine asks for
	Now    func() time.Time // optional: the machine's clock, for certificates; time.Now when nil
	Clock  Clock            // optional: TLSClock when nil
	Dial   Dialer           // optional: TLS when nil
	Random func(n int) int  // optional: returns a number in [0, n); math/rand/v2 when nil
}

// Keys makes the private keys for the machine's certificates and keeps them.
type Keys interface {
	// Request returns a PKCS#10 request in DER, without subject and extensions, for the Want's key. It creates the key if necessary.
	// Until the certificate is issued, further calls for the same Want return requests for the same key.
	Request(w pki.Want) (csr []byte, err error)
}

// Grant is what the cluster gives an admitted machine, decrypted and checked.
type Grant struct {
	Ticket       plan.Ticket
	Secrets      []plan.TicketFile // only for a control plane
	Certificates map[string][]byte // name of the Want → PEM, for the requested keys
	Endpoint     netip.AddrPort    // of the join service that admitted the machine
}

// Status is what the machine waits for. The zero value means that it waits for nothing.
type Status struct {
	wait.For
	Detail string // the latest error or refusal
}

// Limits and pauses.
const (
	stagger        = 250 * time.Millisecond // between the starts of two connections, as in RFC 8305
	attemptTime    = 10 * time.Second       // from the connection to the challenge, and from the proof to the grant
	maxAttemptTime = 40 * time.Second       // the limit for a proof grows to this, which is more than the service itself allows
	waitPause      = 2 * time.Second
	refusedPause   = 5 * time.Second        // after the first refusal
	recordPause    = 500 * time.Millisecond // after the first refusal without a token: the machine's record may be about to be written
	maxRefused     = time.Minute
	untrustedPause = 5 * time.Minute // for a server with another CA
	pollPause      = 500 * time.Millisecond
)

// joiner is the state of one Join.
type joiner struct {
	Config
	history  *history
	status   reporter
	refusals int // in a row
	timeouts int // of proofs, in a row
}

// Join asks until the machine is admitted. It returns an error only if the context ends or the configuration is invalid.
func Join(ctx context.Context, c Config) (Grant, error) {
	if c.Endpoints == nil || c.Key == nil || c.Keys == nil || c.Prover == nil || c.Log == nil || c.Report == nil {
		return Grant{}, errors.New("join: Endpoints, Key, Keys, Prover, Log and Report must be set")
	}
	if _, err := pin.Parse(string(c.Pin)); err != nil {
		return Grant{}, fmt.Errorf("join: parse the pin of the cluster's join CA: %w (slipway token create prints it)", err)
	}
	from := func() netip.Addr { return c.Facts.Address }
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Clock == nil {
		c.Clock = TLSClock(c.Pin, c.Key, from)
	}
	if c.Dial == nil {
		c.Dial = TLS(c.Pin, c.Key, from, c.Now)
	}
	j := &joiner{Config: c, history: newHistory(c.Random), status: reporter{report: c.Report}}
	for {
		grant, err := j.round(ctx)
		if err == nil {
			j.status.clear()
			return grant, nil
		}
		if ctx.Err() != nil {
			return Grant{}, context.Cause(ctx)
		}
		if err := sleep.For(ctx, j.handle(err)); err != nil {
			return Grant{}, err
		}
	}
}

// The ways in which a round ends without a grant.
type (
	// noAnswer: no endpoint may be tried yet, or none answered.
	noAnswer struct {
		pause  time.Duration
		status Status
	}
	// endpointError: the exchange with an endpoint failed after its challenge.
	endpointError struct {
		at  netip.AddrPort
		err error
	}
	// localError is a failure of this machine.
	localError struct{ err error }
	// protocolError is a reply that no join service of this cluster sends.
	protocolError struct{ text string }
)

func (*noAnswer) Error() string        { return "no join service answers" }
func (e *endpointError) Error() string { return e.at.String() + ": " + e.err.Error() }
func (e *endpointError) Unwrap() error { return e.err }
func (e *localError) Error() string    { return e.err.Error() }
func (e *localError) Unwrap() error    { return e.err }
func (e *protocolError) Error() string { return e.text }

func protocolErrorf(format string, args ...any) error {
	return &protocolError{fmt.Sprintf(format, args...)}
}

// refusal returns the text of an error that is a decision of the server: the same request gets the same reply. ok is false for a
// failure that may pass by itself.
func refusal(err error) (text string, ok bool) {
	if _, ok := errors.AsType[*protocolError](err); ok {
		return err.Error(), true
	}
	var withStatus interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &withStatus) {
		return "", false
	}
	switch s := withStatus.GRPCStatus(); s.Code() {
	case codes.PermissionDenied, codes.FailedPrecondition, codes.InvalidArgument, codes.Unauthenticated, codes.Unimplemented, codes.NotFound:
		return s.Message(), true
	}
	return "", false
}

// noChallenge records why an endpoint sent no challenge.
func (j *joiner) noChallenge(at netip.AddrPort, err error) {
	if text, ok := refusal(err); ok {
		j.Log.Warn("join refused", "endpoint", at, "reason", text)
		j.history.refused(at, text)
		return
	}
	if c, ok := errors.AsType[*clockError](err); ok {
		j.history.wrongClock(at, c.Error())
		return
	}
	if rpc.IsUntrusted(err) {
		j.Log.Error("server is not a join service of the cluster, trying the others", "endpoint", at, "pin", j.Pin, "reason", message(err))
		j.history.untrusted(at, message(err))
		return
	}
	j.history.failed(at, message(err))
}

// handle reports what the machine waits for after a failed round. It returns the pause until the next round.
func (j *joiner) handle(err error) time.Duration {
	if e, ok := errors.AsType[*noAnswer](err); ok {
		j.status.set(e.status)
		return e.pause
	}
	if e, ok := errors.AsType[*wait.Error](err); ok {
		j.refusals, j.timeouts = 0, 0
		j.status.set(Status{For: e.For})
		return waitPause
	}
	e, ok := errors.AsType[*endpointError](err)
	if !ok {
		e = &endpointError{err: err}
	}
	if c, ok := errors.AsType[*clockError](err); ok {
		j.history.wrongClock(e.at, c.Error())
		j.status.set(clockStatus(c.Error()))
		return 0
	}
	if l, ok := errors.AsType[*localError](err); ok {
		j.status.set(Status{For: wait.For{What: "the keys of this machine", Who: "this machine"}, Detail: l.Error()})
		j.refusals++
		return j.history.backoff(firstPause, maxPause, j.refusals-1)
	}
	if text, ok := refusal(e.err); ok {
		j.Log.Warn("join refused", "endpoint", e.at, "reason", text)
		j.status.set(refusalStatus(e.at, text))
		j.refusals++
		first := refusedPause
		if j.Prover.Kind() == attest.Key {
			first = recordPause
		}
		return j.history.backoff(first, maxRefused, j.refusals-1)
	}
	j.history.failed(e.at, message(e.err))
	j.status.set(j.unreachable(j.Endpoints()))
	return 0
}

func refusalStatus(at netip.AddrPort, text string) Status {
	return Status{
		For:    wait.For{What: "permission to join the cluster", Who: "the operator of the cluster (the audit log on " + at.String() + " has the reason)"},
		Detail: text,
	}
}

// unreachable returns the status while no endpoint has sent a challenge.
func (j *joiner) unreachable(endpoints []netip.AddrPort) Status {
	endpoints = unique(endpoints)
	if len(endpoints) == 0 {
		return Status{For: wait.For{What: "the address of a join service", Who: "slipway join --endpoint HOST:PORT"}}
	}
	if detail, ok := j.history.onlyClocks(endpoints); ok {
		return clockStatus(detail)
	}
	if at, text, ok := j.history.firstRefusal(endpoints); ok {
		return refusalStatus(at, text)
	}
	return Status{
		For:    wait.For{What: "a join service of cluster " + j.Pin.ClusterID(), Who: "a control plane at " + list(endpoints)},
		Detail: j.history.summary(endpoints),
	}
}

func list(endpoints []netip.AddrPort) string {
	texts := make([]string, len(endpoints))
	for i, at := range endpoints {
		texts[i] = at.String()
	}
	return strings.Join(texts, ", ")
}

// message returns the text of an error without what gRPC puts around it.
func message(err error) string {
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

// fromWire decodes a Wait message of a join service.
func fromWire(w *joinv1.Wait) wait.For {
	out := wait.For{What: w.GetWhat(), Who: w.GetWho()}
	if nano := w.GetSinceUnixNano(); nano > 0 {
		out.Since = time.Unix(0, nano)
	}
	return out
}

// reporter calls report when the status changes, and keeps the time since when the machine has been waiting.
type reporter struct {
	report func(Status)
	last   Status
}

func (r *reporter) set(s Status) {
	if s.Since.IsZero() {
		s.Since = time.Now()
		if r.last.What == s.What {
			s.Since = r.last.Since
		}
	}
	if s.What == r.last.What && s.Who == r.last.Who && s.Detail == r.last.Detail && s.Since.Equal(r.last.Since) {
		return
	}
	r.last = s
	r.report(s)
}

// clear reports that the machine waits for nothing.
func (r *reporter) clear() {
	if r.last.What != "" {
		r.last = Status{}
		r.report(Status{})
	}
}
