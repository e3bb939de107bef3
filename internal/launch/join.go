// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	nodev1 "github.com/slipway-project/slipway/api/node/v1"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/proxy"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// JoinOptions say which cluster the machine that this runs on shall join.
type JoinOptions struct {
	Socket    string   // of the machine's agent
	Endpoints []string // host:port of join services
	Pin       string   // of the join CA
	Token     string   // empty: the cluster knows the machine's key
	Node      string   // optional
	Wait      bool     // until the machine is in
	Timeout   time.Duration
	Report    func(Event)
}

// Check tells what is wrong with the options before anybody is asked.
func (o JoinOptions) Check() error {
	if len(o.Endpoints) == 0 {
		return errors.New("name a join service: --endpoint ADDRESS:9440")
	}
	for _, e := range o.Endpoints {
		if a, err := netip.ParseAddrPort(e); err != nil || a.Port() == 0 {
			return fmt.Errorf("--endpoint %q: use ADDRESS:PORT, such as 10.0.0.4:9440", e)
		}
	}
	return CheckPin(o.Pin)
}

// CheckPin tells what is wrong with the form of a pin.
func CheckPin(text string) error {
	if _, err := pin.Parse(text); err != nil {
		return fmt.Errorf("--pin %q: use sha256: and 64 hex digits", text)
	}
	return nil
}

// Join tells the machine's agent which cluster to join. The agent keeps that and goes on trying by itself.
func Join(ctx context.Context, o JoinOptions) (Membership, error) {
	if err := o.Check(); err != nil {
		return Membership{}, err
	}
	if !isSocket(o.Socket) {
		return Membership{}, fmt.Errorf("join a cluster: no agent runs on this machine (no %s): run this on the machine that shall join", o.Socket)
	}
	var m Membership
	err := withAgent(ctx, target{"this machine", func(ctx context.Context) (net.Conn, error) { return proxy.DialUnix(ctx, o.Socket) }}, func(ctx context.Context, a *Agent) error {
		_, err := a.client.Join(ctx, &nodev1.JoinRequest{Endpoints: o.Endpoints, Pin: o.Pin, Token: o.Token, Node: o.Node})
		if err != nil {
			return fmt.Errorf("join a cluster: %w", plain(err))
		}
		if !o.Wait {
			m, err = a.Member(ctx)
			return err
		}
		m, err = a.untilIn(ctx, o)
		return err
	})
	return m, err
}

// untilIn follows the agent until the machine belongs to a cluster.
func (a *Agent) untilIn(ctx context.Context, o JoinOptions) (Membership, error) {
	limited, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	begun, last, word := time.Now(), Membership{}, ""
	// Commits are rare and the watch tells of items only: each change of an item is a reason to look, and each second is.
	look := func() (in bool) {
		m, err := a.Member(limited)
		if err == nil {
			last = m
		}
		return err == nil && m.Lock == "committed"
	}
	for !look() {
		second, cancel := context.WithTimeout(limited, time.Second)
		err := a.Watch(second, func(s reconcile.Status, _ bool, _ int) bool {
			e := convergeEvent("", s)
			e.Elapsed = time.Since(begun)
			o.Report(e)
			if s.Phase != reconcile.Ready {
				word = cmp.Or(s.Error, s.What)
			}
			return look()
		})
		cancel()
		if limited.Err() != nil {
			break
		}
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return last, err
		}
	}
	switch {
	case last.Lock == "committed":
		return last, nil
	case ctx.Err() != nil:
		return last, ctx.Err()
	}
	return last, &Error{TimedOut, fmt.Errorf("the machine is not in after %s (%s); it goes on by itself: see slipway logs agent", o.Timeout, orElse(word, last.Lock))}
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}
