// SPDX-License-Identifier: Apache-2.0

package joinclient

import (
	"context"
	"crypto/ecdsa"
	"errors"
	"fmt"
	"net/netip"
	"time"

	joinv1 "github.com/slipway-project/slipway/api/join/v1"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/rpc"
)

// Clock asks a join service of the cluster what time it is there. The server must show a chain that ends in the pinned CA; only the
// times in it do not count.
type Clock func(ctx context.Context, to netip.AddrPort) (time.Time, error)

// TLSClock is the Clock for real networks.
func TLSClock(ca pin.Pin, key *ecdsa.PrivateKey, from func() netip.Addr) Clock {
	return func(ctx context.Context, to netip.AddrPort) (time.Time, error) {
		conn, err := dialTLS(to, rpc.ClientOptions{CAPin: ca, AnyTime: true}, key, from, time.Now)
		if err != nil {
			return time.Time{}, err
		}
		defer conn.Close() //nolint:errcheck // nothing is lost with it
		reply, err := joinv1.NewJoinClient(conn).Clock(ctx, &joinv1.ClockRequest{})
		if err != nil {
			return time.Time{}, err
		}
		return time.Unix(0, reply.GetUnixNano()), nil
	}
}

// Untimely: two clocks do not agree so far that this machine can believe the certificates of its cluster.
type untimely struct {
	at     netip.AddrPort
	here   time.Time
	there  time.Time // zero: it did not say
	reason error
}

func (u *untimely) Unwrap() error { return u.reason }

func (u *untimely) Error() string {
	if u.there.IsZero() {
		return plainly(u.reason)
	}
	return fmt.Sprintf("the clock of this machine says %s, that of %s says %s: %s", stamp(u.here), u.at, stamp(u.there), apart(u.here, u.there))
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// apart says how far and in which direction two clocks are apart, in units that a person would use.
func apart(here, there time.Time) string {
	by, how := here.Sub(there), "ahead of"
	if by < 0 {
		by, how = -by, "behind"
	}
	text := by.Round(time.Second).String()
	if day := 24 * time.Hour; by >= 2*day {
		text = fmt.Sprintf("%d days", by.Round(day)/day)
	}
	return fmt.Sprintf("this machine is %s %s it", text, how)
}

// clocks asks for the time where a certificate's times were not believed. Every other error stays as it is.
func clocks(ctx context.Context, at netip.AddrPort, err error, now func() time.Time, ask Clock) error {
	if _, is := errors.AsType[*early](err); !is && !rpc.IsWrongClock(err) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, clockTime)
	defer cancel()
	u := &untimely{at: at, here: now(), reason: err}
	if there, err := ask(ctx, at); err == nil {
		u.here, u.there = now(), there
	}
	return u
}

const (
	clockTime  = 3 * time.Second // to say what time it is
	clockPause = 2 * time.Second // until a clock is looked at again that somebody may have set
)

// early is a certificate that was signed for this machine and is not good by its clock.
type early struct{ what string }

func (e *early) Error() string { return e.what }

func clockStatus(what string) Status {
	return Status{
		For: wait.For{What: "clocks that agree", Who: "whoever sets the clock of this machine, or of the control plane if that is wrong (chrony, systemd-timesyncd, date): it goes on by itself then"}, Detail: what,
	}
}
