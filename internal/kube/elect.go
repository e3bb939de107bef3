// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/sleep"
)

// ElectConfig says what is led, and who wants to lead it. The three times are those of Kubernetes' own components.
type ElectConfig struct {
	Namespace, Name string // of the Lease
	Identity        string // of the candidate. Its own lease it takes back at once: two with one identity are not kept apart

	Lease time.Duration // 0: 15 s. So long after the last renewal that was seen nobody else leads
	Renew time.Duration // 0: 10 s. So long after the last renewal that was sent the leader goes on
	Retry time.Duration // 0: 2 s. Between renewals, and between looks at another's lease

	// Follow, optional, is told by whom the lease is held, or why nobody knows: one call at a time, each change.
	Follow func(holder, why string)
}

func (c ElectConfig) complete() ElectConfig {
	if c.Lease == 0 {
		c.Lease, c.Renew, c.Retry = 15*time.Second, 10*time.Second, 2*time.Second
	}
	if c.Follow == nil {
		c.Follow = func(string, string) {}
	}
	return c
}

// Reasons why a term ends.
var (
	errNotRenewed = errors.New("the lease could not be renewed in time")
	errTaken      = errors.New("the lease is another's")
	errReturned   = errors.New("the work has ended")
)

// Elect waits until the lease is free, takes it and calls lead; when the lease is lost it waits again. The context of lead ends
// before anybody else may lead; Elect then waits for lead to return. It returns what lead returns by itself, or the
// context's error, and gives the lease back in both cases, so that the next leads at once.
func (c *Client) Elect(ctx context.Context, cfg ElectConfig, lead func(ctx context.Context, fence Fence) error) error {
	e := elector{Client: c, cfg: cfg.complete()}
	if e.cfg.Identity == "" || e.cfg.Renew >= e.cfg.Lease || e.cfg.Retry >= e.cfg.Renew {
		return fmt.Errorf("elect a leader: want an identity, and retry < renew < lease; have %q, %s, %s, %s", e.cfg.Identity, e.cfg.Retry, e.cfg.Renew, e.cfg.Lease)
	}
	for {
		if err := e.acquire(ctx); err != nil {
			return err
		}
		why, err := e.lead(ctx, lead)
		switch {
		case errors.Is(why, errReturned):
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		c.log.Warn("leads no longer", "lease", cfg.Name, "why", why)
		e.follow("", why.Error())
	}
}

type elector struct {
	*Client
	cfg ElectConfig

	mine term // the lease as this process has written it last

	seen        string // version of another's lease
	seenAt      time.Time
	holder, why string // what was told last
	told        bool
}

func (e *elector) follow(holder, why string) {
	if !e.told || holder != e.holder || why != e.why {
		e.holder, e.why, e.told = holder, why, true
		e.cfg.Follow(holder, why)
	}
}

// acquire blocks until the lease is held.
func (e *elector) acquire(ctx context.Context) error {
	var pace backoff
	for {
		wait, err := e.take(ctx)
		switch {
		case ctx.Err() != nil:
			return ended(ctx, e.why)
		case err == nil && wait == 0:
			return nil
		case err != nil:
			e.follow("", reason(err))
			if pace.pause(ctx) != nil {
				return ended(ctx, e.why)
			}
			continue
		}
		pace.reset()
		if sleep.For(ctx, wait) != nil {
			return ended(ctx, e.why)
		}
	}
}

// lead works until the lease is lost, ctx ends or the work returns; why says which, err is the work's own.
func (e *elector) lead(ctx context.Context, work func(context.Context, Fence) error) (why, err error) {
	h := &held{lease: e.cfg.Lease, renew: e.cfg.Renew}
	h.renewed(e.mine.asked)
	e.follow(e.cfg.Identity, "")
	e.log.Info("leads", "lease", e.cfg.Name, "identity", e.cfg.Identity)

	leading, end := context.WithCancelCause(ctx)
	defer end(nil)
	var group errgroup.Group
	group.Go(func() error {
		err := work(leading, Fence{h})
		end(errReturned) // without effect when it has ended before
		return err
	})
	end(e.keep(leading, h))
	err = group.Wait()
	why = context.Cause(leading)
	h.finish()
	if errors.Is(why, errReturned) || ctx.Err() != nil {
		e.release(ctx)
	}
	return why, err
}

// keep renews until ctx ends or the lease is lost, and says how.
func (e *elector) keep(ctx context.Context, h *held) error {
	late := time.NewTimer(h.left())
	defer late.Stop()
	tick := time.NewTicker(e.cfg.Retry)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-late.C:
			return errNotRenewed
		case <-tick.C:
		}
		limited, cancel := context.WithTimeoutCause(ctx, h.left(), errNotRenewed)
		err := e.renew(limited)
		cancel()
		switch {
		case err == nil:
			h.renewed(e.mine.asked)
			late.Reset(h.left())
		case errors.Is(err, errTaken):
			return err
		case ctx.Err() == nil:
			e.log.Warn("lease is not renewed", "lease", e.cfg.Name, "why", reason(err), "left", h.left())
		}
	}
}
