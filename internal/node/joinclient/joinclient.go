// SPDX-License-Identifier: Apache-2.0

// Package joinclient is a machine's side of the join service: it asks until the machine is let in, and afterwards keeps the node
// in touch with some control plane. It trusts a server for the pin of its join CA only, sends nothing secret before that is
// checked, and believes nothing of an answer that does not lead back to the pin. It never plans, never writes a file, and never
// gives up: what it waits for, since when, and whose turn it is, it reports.
//
// Read [Config] and [Join] first, then [Sync].
//
//	grant, err := joinclient.Join(ctx, joinclient.Config{Endpoints: known, Pin: pin, Prover: prover, Key: machineKey, …})
//	grant.Ticket.Plan.Node // "dev-worker-0": the record's name, whatever the machine believed
package joinclient

import (
	"context"
	"crypto/ecdsa"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/slipway-project/slipway/internal/attest"
	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/sleep"
)

// Config is what a machine joins with.
type Config struct {
	Endpoints  func() []netip.AddrPort // join services as they are known now
	Pin        pin.Pin                 // of the cluster's join CA
	Key        *ecdsa.PrivateKey       // the machine's
	Keys       Keys
	Prover     attest.Prover // how the machine proves its right to join
	Facts      machine.Facts // their address must be the one that the connections come from
	Kubernetes string        // version in the component store; empty: whatever it is given
	Slipway    string
	Log        *slog.Logger
	Report     func(Status) // called at each change of what is waited for, never twice at once

	Node   string           // optional: the name that the machine is to have
	Now    func() time.Time // optional: the machine's clock, for certificates; time.Now when nil
	Clock  Clock            // optional: TLS from the machine's address when nil
	Dial   Dialer           // optional: TLS from the machine's address when nil
	Random func(n int) int  // optional: a number in [0, n); math/rand/v2 when nil
}

// Keys makes the machine's keys for certificates. The private key stays where it was born.
type Keys interface {
	// Request gives a PKCS#10 request, DER, without subject and extensions, for the Want's key, which it makes if need be. Asked
	// again for a Want whose certificate is not there yet, it gives a request for the same key.
	Request(w pki.Want) (csr []byte, err error)
}

// Grant is what a machine was let in with, opened and checked.
type Grant struct {
	Ticket       plan.Ticket
	Secrets      []plan.TicketFile // of a control plane
	Certificates map[string][]byte // name of the Want → PEM, for the keys that were asked with
	Endpoint     netip.AddrPort    // who let it in
}

// Status is what is waited for; the zero value says that nothing is waited for any more.
type Status struct {
	wait.For
	Detail string // what was heard last
}

// How soon something is asked again.
const (
	stagger       = 250 * time.Millisecond // between the starts of two connections, as for RFC 8305
	attemptTime   = 10 * time.Second       // from the connection to the challenge, and from the proof to the grant
	attemptMost   = 40 * time.Second       // a proof's time grows to this, which is more than the service itself allows
	waitPause     = 2 * time.Second
	refusedPause  = 5 * time.Second        // at first
	recordPause   = 500 * time.Millisecond // at first, without a token: a spec's machines are told before their records are written
	refusedMost   = time.Minute
	mistrustPause = 5 * time.Minute // a server with the wrong CA
	lookPause     = 500 * time.Millisecond
)

// Join asks until the machine is let in. It returns an error only when the context ends or the configuration is wrong.
func Join(ctx context.Context, c Config) (Grant, error) {
	if err := c.check(); err != nil {
		return Grant{}, err
	}
	j := &joining{Config: c.filled(), places: newPlaces(c.Random), says: reporter{report: c.Report}}
	for {
		grant, err := j.round(ctx)
		if err == nil {
			j.says.nothing()
			return grant, nil
		}
		if ctx.Err() != nil {
			return Grant{}, context.Cause(ctx)
		}
		if err := sleep.For(ctx, j.judge(err)); err != nil {
			return Grant{}, err
		}
	}
}

func (c Config) check() error {
	switch {
	case c.Endpoints == nil, c.Key == nil, c.Keys == nil, c.Prover == nil, c.Log == nil, c.Report == nil:
		return errors.New("join: Endpoints, Key, Keys, Prover, Log and Report must be set")
	}
	if _, err := pin.Parse(string(c.Pin)); err != nil {
		return fmt.Errorf("join: the pin of the cluster's join CA: %w (slipway token create prints it)", err)
	}
	return nil
}

func (c Config) filled() Config {
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
	return c
}
