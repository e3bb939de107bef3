// SPDX-License-Identifier: Apache-2.0

package enrol

import (
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

	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/roster"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/node/joinclient"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/node/rosterfile"
	"github.com/slipway-project/slipway/internal/node/routes"
	"github.com/slipway-project/slipway/internal/reconcile"
	"github.com/slipway-project/slipway/internal/sleep"
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
	e.say(reconcile.Status{Ref: itemRoster, Phase: reconcile.Waiting, For: wait.For{What: "the cluster's roster", Who: "a control plane"}})
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
		Endpoints: func() []netip.AddrPort { return e.places(file) }, Pin: pin.OfCertificate(ca), Key: e.cfg.Key, Node: now.Node,
		Slipway: e.cfg.Slipway, Generation: e.unlessLost(file.Generation), Log: e.cfg.Log, Own: e.own, From: func() netip.Addr { return e.cfg.Facts.Address },
		Now: e.cfg.Now, Clock: e.cfg.Clock(pin.OfCertificate(ca)),
		Dial: e.cfg.Dial(pin.OfCertificate(ca)), Random: e.cfg.Random,
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
		e.say(reconcile.Status{Ref: itemRoster, Phase: reconcile.Failing, Error: err.Error(), For: wait.For{Who: "a backup, or another node's copy"}})
		if sleep.For(ctx, lookForCA) != nil {
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
	e.say(reconcile.Status{Ref: itemRoutes, Phase: reconcile.Failing, Error: problem, For: wait.For{Who: "this machine, which tries again"}})
}

// touch says whether the node is in touch with the cluster.
func (e *Enrolment) touch(s joinclient.Status) {
	if s.What == "" {
		e.say(reconcile.Status{Ref: itemRoster, Phase: reconcile.Ready})
		return
	}
	e.say(reconcile.Status{Ref: itemRoster, Phase: reconcile.Waiting, For: wait.For{What: withDetail(s), Who: s.Who, Since: s.Since}})
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

func (e *Enrolment) ownPlace() netip.AddrPort {
	return netip.AddrPortFrom(e.cfg.Facts.Address, joinPort)
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
