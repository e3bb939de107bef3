// SPDX-License-Identifier: Apache-2.0

package enrol

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/roster"
	"github.com/slipway-project/slipway/internal/node/joinclient"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/node/rosterfile"
	"github.com/slipway-project/slipway/internal/node/routes"
	"github.com/slipway-project/slipway/internal/reconcile"
	"github.com/slipway-project/slipway/internal/rest"
)

// joinPort is where control planes let machines in.
const joinPort = 9440

// belongs keeps a node in touch with its cluster. The node's plan does not wait for it: without a network, what is on the disk is
// enough.
func (e *Enrolment) belongs(ctx context.Context, now lock.State) error {
	e.unsay(itemLock)
	e.cfg.Pass("take back the create permit")
	if err := os.Remove(e.cfg.Paths.Create); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("take back the permit to make a cluster: %w", err)
	}
	e.spendEtcdPermit()
	e.say(reconcile.Status{Ref: itemRoster, Phase: reconcile.Waiting, For: "the cluster's roster", Provider: "a control plane"})
	defer e.unsay(itemRoster)
	e.sayLostKey(now)
	defer e.unsay(itemKey)
	defer e.unsay(itemRoutes)
	ca := e.joinCA(ctx)
	if ca == nil {
		return nil
	}
	file := rosterfile.Open(e.cfg.Paths.Roster, ca)
	s, err := joinclient.NewSync(joinclient.SyncConfig{
		Endpoints: func() []netip.AddrPort { return e.places(file) }, Pin: roster.Pin(ca.RawSubjectPublicKeyInfo), Key: e.cfg.Key, Node: now.Node,
		Slipway: e.cfg.Slipway, Generation: e.unlessLost(file.Generation), Log: e.cfg.Log, Own: e.own, From: func() netip.Addr { return e.facts().Address },
		Now: e.cfg.Now, Clock: e.cfg.Clock(roster.Pin(ca.RawSubjectPublicKeyInfo)),
		Dial: e.cfg.Dial(roster.Pin(ca.RawSubjectPublicKeyInfo)), Random: e.cfg.Random,
		Roster: func(signed []byte) error {
			e.cfg.Pass("take roster")
			_, err := file.Take(signed)
			e.cfg.Pass("roster taken")
			if err == nil {
				e.say(reconcile.Status{Ref: itemRoster, Phase: reconcile.Ready})
				e.knownAgain()
			}
			return err
		},
		Report: e.touch,
	})
	if err != nil {
		return err
	}
	if _, err := file.Read(); err == nil { // it is in touch until it hears otherwise
		e.say(reconcile.Status{Ref: itemRoster, Phase: reconcile.Ready})
	}
	e.setSync(s)
	defer e.setSync(nil)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.Run(ctx) })
	group.Go(func() error {
		return e.cfg.Routes(ctx, routes.Config{Self: now.Node, Now: e.unlessWiping(file.Now), Log: e.cfg.Log, Say: e.routed})
	})
	group.Go(func() error { return e.member(ctx, s) })
	if err := group.Wait(); ctx.Err() == nil {
		return err
	}
	return nil
}

// joinCA is what the node knows its cluster by. It waits for one that is lost, until ctx ends: without it nobody is believed.
func (e *Enrolment) joinCA(ctx context.Context) *x509.Certificate {
	for {
		ca, err := readCert(e.cfg.Paths.JoinCA)
		if err == nil {
			return ca
		}
		e.say(reconcile.Status{Ref: itemRoster, Phase: reconcile.Failing, Error: err.Error(), Provider: "a backup, or another node's copy"})
		if rest.For(ctx, lookForCA) != nil {
			return nil
		}
	}
}

// lookForCA is for a person who puts back a file.
const lookForCA = 2 * time.Second

// unlessWiping hides the roster from who keeps the routes while a reset takes them away.
func (e *Enrolment) unlessWiping(read func() (roster.Roster, <-chan struct{}, error)) func() (roster.Roster, <-chan struct{}, error) {
	return func() (roster.Roster, <-chan struct{}, error) {
		r, changed, err := read()
		if e.cfg.Agent.Wiping() {
			err = errors.New("the machine is being reset")
		}
		return r, changed, err
	}
}

// routed says what is wrong with the routes to other nodes' pods.
func (e *Enrolment) routed(problem string) {
	if strings.HasPrefix(problem, "no roster") {
		return // which has an item of its own
	}
	if problem == "" {
		e.say(reconcile.Status{Ref: itemRoutes, Phase: reconcile.Ready})
		return
	}
	e.say(reconcile.Status{Ref: itemRoutes, Phase: reconcile.Failing, Error: problem, Provider: "this machine, which tries again"})
}

// touch says whether the node is in touch with the cluster.
func (e *Enrolment) touch(s joinclient.Status) {
	if s.For == "" {
		e.say(reconcile.Status{Ref: itemRoster, Phase: reconcile.Ready})
		return
	}
	e.say(reconcile.Status{Ref: itemRoster, Phase: reconcile.Waiting, For: withDetail(s), Provider: s.Provider, Since: s.Since})
}

// places are the join services that the roster names, and those that the machine was told of when it joined.
func (e *Enrolment) places(file *rosterfile.File) []netip.AddrPort {
	target, _ := e.aim()
	all := endpoints(target)
	if r, err := file.Read(); err == nil {
		all = append(append([]netip.AddrPort(nil), r.Join...), all...)
	}
	if len(all) == 0 && e.controls() { // the first node of a cluster, before there is a roster
		all = []netip.AddrPort{e.ownPlace()}
	}
	return all
}

// own is the node's own join service, once its etcd counts.
func (e *Enrolment) own() netip.AddrPort {
	if _, err := os.Stat(e.cfg.Paths.Voter); err != nil || !e.controls() {
		return netip.AddrPort{}
	}
	return e.ownPlace()
}

func (e *Enrolment) ownPlace() netip.AddrPort { return netip.AddrPortFrom(e.facts().Address, joinPort) }

// controls tells whether the node's plan has an etcd, and so a control plane.
func (e *Enrolment) controls() bool {
	_, ok := e.cfg.Agent.Holds(etcdUnit)
	return ok
}

const etcdUnit = "etcd"

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
			return e.cfg.Agent.Give(plan.Given{Path: e.cfg.Paths.Voter, Mode: 0o600, Content: []byte("it has counted before\n")})
		}
		err := s.Member(ctx, joinclient.Member{
			Started: func() bool { return e.cfg.Agent.Running(etcdUnit) }, Permit: e.permit, Waiting: e.memberWaits,
		})
		if err == nil {
			e.cfg.Pass("promoted")
			err = e.cfg.Agent.Give(plan.Given{Path: e.cfg.Paths.Voter, Mode: 0o600, Content: []byte("promoted\n")})
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
		e.say(reconcile.Status{Ref: itemEtcd, Phase: reconcile.Failing, Error: err.Error(), Provider: "this machine, which tries again"})
		if rest.For(ctx, time.Second) != nil {
			return nil
		}
	}
}

// memberWaits says whose turn it is before this node's: that etcd's permit is missing tells nobody why.
// hasCounted tells whether this node's etcd has voted: its mark is written after the promotion, never before.
func (e *Enrolment) hasCounted() bool {
	h, ok := e.cfg.Agent.Holds(etcdUnit)
	if !ok || h.Mark == "" {
		return false
	}
	_, err := os.Stat(h.Mark)
	return err == nil
}

func (e *Enrolment) memberWaits(w joinclient.Status) {
	if w.For == "" {
		e.say(reconcile.Status{Ref: itemEtcd, Phase: reconcile.Starting, For: "its own etcd", Provider: etcdUnit})
		return
	}
	e.cfg.Log.Info("waiting for a way into etcd", "for", w.For, "provider", w.Provider, "since", w.Since)
	e.say(reconcile.Status{Ref: itemEtcd, Phase: reconcile.Waiting, For: w.For, Provider: w.Provider, Since: w.Since})
}

// permit lets etcd start. What an etcd with another permit has left belongs to a member that the cluster has removed: it never
// counted, so it is nothing that anybody misses.
func (e *Enrolment) permit(content []byte, anew bool) error {
	e.cfg.Pass("permit")
	have, err := os.ReadFile(e.cfg.Paths.Permit)
	if err == nil && bytes.Equal(have, content) {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if anew || err == nil {
		if err := e.cfg.Agent.Discard(etcdUnit); err != nil {
			return err
		}
	}
	defer e.cfg.Pass("permit written")
	return e.cfg.Agent.Give(plan.Given{Path: e.cfg.Paths.Permit, Mode: 0o600, Content: content})
}

func (e *Enrolment) setSync(s *joinclient.Sync) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sync = s
	close(e.ready)
	e.ready = make(chan struct{})
}

// Renew has a certificate signed by the cluster; it waits until somebody is there to ask.
func (e *Enrolment) Renew(ctx context.Context, w pki.Want, request []byte) (certificate []byte, err error) {
	for {
		e.mu.Lock()
		s, changed := e.sync, e.ready
		e.mu.Unlock()
		if s != nil {
			answer, err := s.Renew(ctx, map[string][]byte{w.Name: request})
			return answer[w.Name], err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("have %s signed: this machine is not in touch with its cluster: %w", w.Name, context.Cause(ctx))
		}
	}
}
