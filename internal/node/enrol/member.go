// SPDX-License-Identifier: Apache-2.0

package enrol

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/node/joinclient"
	"github.com/slipway-project/slipway/internal/reconcile"
	"github.com/slipway-project/slipway/internal/sleep"
)

const etcdUnit = "etcd"

// controls tells whether the node's plan has an etcd, and so a control plane.
func (e *Enrolment) controls() bool {
	_, ok := e.cfg.Agent.Holds(etcdUnit)
	return ok
}

// member leads this node's etcd into the cluster, unless it counts already.
func (e *Enrolment) member(ctx context.Context, s *joinclient.Sync) error {
	if !e.controls() {
		return nil
	}
	defer e.unsay(itemEtcd)
	for {
		if _, err := os.Stat(e.cfg.Paths.Voter); err == nil {
			return nil
		}
		if e.hasCounted() { // the file was lost; on the only control plane nobody else could give it back
			return e.cfg.Agent.Give(plan.TicketFile{Path: e.cfg.Paths.Voter, Mode: 0o600, Content: []byte("it has counted before\n")})
		}
		err := s.Member(ctx, joinclient.Member{
			Started: func() bool { return e.cfg.Agent.Running(etcdUnit) }, Permit: e.permit, Waiting: e.memberWaits,
		})
		if err == nil {
			e.cfg.Pass("promoted")
			err = e.cfg.Agent.Give(plan.TicketFile{Path: e.cfg.Paths.Voter, Mode: 0o600, Content: []byte("promoted\n")})
			e.cfg.Pass("voter written")
		}
		if ctx.Err() != nil {
			return nil // nobody waits any more
		}
		if err == nil {
			e.say(reconcile.Status{Ref: itemEtcd, Phase: reconcile.Ready})
			return nil
		}
		e.cfg.Log.Warn("way into etcd", "error", err)
		e.say(reconcile.Status{Ref: itemEtcd, Phase: reconcile.Failing, Error: err.Error(), For: wait.For{Who: "this machine, which tries again"}})
		if sleep.For(ctx, time.Second) != nil {
			return nil
		}
	}
}

// hasCounted tells whether this node's etcd has voted: its mark is written after the promotion, never before.
func (e *Enrolment) hasCounted() bool {
	h, ok := e.cfg.Agent.Holds(etcdUnit)
	if !ok || h.Mark == "" {
		return false
	}
	_, err := os.Stat(h.Mark)
	return err == nil
}

// memberWaits says whose turn it is before this node's: that etcd's permit is missing tells nobody why.
func (e *Enrolment) memberWaits(w joinclient.Status) {
	if w.What == "" {
		e.say(reconcile.Status{Ref: itemEtcd, Phase: reconcile.Starting, For: wait.For{What: "its own etcd", Who: etcdUnit}})
		return
	}
	e.cfg.Log.Info("waiting for a way into etcd", "for", w.What, "provider", w.Who, "since", w.Since)
	e.say(reconcile.Status{Ref: itemEtcd, Phase: reconcile.Waiting, For: wait.For{What: w.What, Who: w.Who, Since: w.Since}})
}

// permit lets etcd start. What an etcd with another permit has left belongs to a member that the cluster has removed: it never
// counted, so it is nothing that anybody misses.
func (e *Enrolment) permit(content []byte, discard bool) error {
	e.cfg.Pass("permit")
	have, err := os.ReadFile(e.cfg.Paths.Permit)
	if err == nil && bytes.Equal(have, content) {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if discard || err == nil {
		if err := e.cfg.Agent.Discard(etcdUnit); err != nil {
			return err
		}
	}
	defer e.cfg.Pass("permit written")
	return e.cfg.Agent.Give(plan.TicketFile{Path: e.cfg.Paths.Permit, Mode: 0o600, Content: content})
}
