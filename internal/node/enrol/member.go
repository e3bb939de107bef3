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

	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/roster"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/node/joinclient"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/node/rosterfile"
	"github.com/slipway-project/slipway/internal/node/routes"
	"github.com/slipway-project/slipway/internal/reconcile"
	"github.com/slipway-project/slipway/internal/sleep"
)

const (
	joinPort     = 9440 // of the join services
	joinCAPoll   = 2 * time.Second
	addressPoll  = 500 * time.Millisecond
	etcdUnit     = "etcd"
	etcdJoinWait = time.Second // before another attempt to add etcd to the cluster
)

// runMember keeps a committed machine in contact with its cluster until ctx ends. The node's plan does not depend on it: without a
// network, the files on the disk are sufficient.
func (e *Enrolment) runMember(ctx context.Context, now lock.State) error {
	e.forgetItem(itemLock)
	e.cfg.Pass("take back the create permit")
	if err := os.Remove(e.cfg.Paths.Create); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the permit to create a cluster: %w", err)
	}
	e.revokeEtcdBootstrap()
	e.report(reconcile.Status{Ref: itemRoster, Phase: reconcile.Waiting, For: wait.For{What: "the cluster's roster", Who: "a control plane"}})
	defer e.forgetItem(itemRoster)
	e.reportNewKey(now)
	defer e.forgetItem(itemKey)
	defer e.forgetItem(itemRoutes)
	ca := e.waitForJoinCA(ctx)
	if ca == nil {
		return nil
	}
	file := rosterfile.Open(e.cfg.Paths.Roster, ca)
	s, err := joinclient.NewSync(joinclient.SyncConfig{
		Endpoints: func() []netip.AddrPort { return e.joinServices(file) }, Pin: pin.OfCertificate(ca), Key: e.cfg.Key, Node: now.Node,
		Slipway: e.cfg.Slipway, Generation: e.rosterGeneration(file.Generation), Log: e.cfg.Log, Own: e.ownVoter, From: func() netip.Addr { return e.cfg.Facts.Address },
		Now: e.cfg.Now, Clock: e.cfg.Network.Clock(pin.OfCertificate(ca)),
		Dial: e.cfg.Network.Dialer(pin.OfCertificate(ca)), Random: e.cfg.Random,
		Roster: func(signed []byte) error {
			e.cfg.Pass("take roster")
			_, err := file.Take(signed)
			e.cfg.Pass("roster taken")
			if err == nil {
				e.report(reconcile.Status{Ref: itemRoster, Phase: reconcile.Ready})
				e.acceptNewKey()
			}
			return err
		},
		Report: func(s joinclient.Status) {
			if s.What == "" {
				e.report(reconcile.Status{Ref: itemRoster, Phase: reconcile.Ready})
				return
			}
			e.report(reconcile.Status{Ref: itemRoster, Phase: reconcile.Waiting, For: wait.For{What: statusText(s), Who: s.Who, Since: s.Since}})
		},
	})
	if err != nil {
		return err
	}
	if _, err := file.Read(); err == nil { // assume contact until the sync reports otherwise
		e.report(reconcile.Status{Ref: itemRoster, Phase: reconcile.Ready})
	}
	e.setSync(s)
	defer e.setSync(nil)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.Run(ctx) })
	group.Go(func() error {
		rosterOrReset := func() (roster.Roster, <-chan struct{}, error) {
			r, changed, err := file.Now()
			if e.cfg.Agent.Wiping() { // the reset is removing the routes
				err = errors.New("the machine is being reset")
			}
			return r, changed, err
		}
		return e.cfg.Network.KeepRoutes(ctx, routes.Config{Self: now.Node, Now: rosterOrReset, Log: e.cfg.Log, Say: e.reportRoutes})
	})
	group.Go(func() error { return e.joinEtcd(ctx, s) })
	if err := group.Wait(); ctx.Err() == nil {
		return err
	}
	return nil
}

// waitForJoinCA reads the certificate by which the node verifies its cluster. While it is missing, it waits until an operator restores
// it. It returns nil when ctx ends.
func (e *Enrolment) waitForJoinCA(ctx context.Context) *x509.Certificate {
	for {
		ca, err := readCert(e.cfg.Paths.JoinCA)
		if err == nil {
			return ca
		}
		e.report(reconcile.Status{Ref: itemRoster, Phase: reconcile.Failing, Error: err.Error(), For: wait.For{Who: "an operator: copy it from a backup or another node"}})
		if sleep.For(ctx, joinCAPoll) != nil {
			return nil
		}
	}
}

func readCert(path string) (*x509.Certificate, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return pki.Certificate(path, text)
}

// reportRoutes reports a problem with the routes to other nodes' pods, or that there is none any more.
func (e *Enrolment) reportRoutes(problem string) {
	switch {
	case problem == "":
		e.report(reconcile.Status{Ref: itemRoutes, Phase: reconcile.Ready})
	case strings.HasPrefix(problem, "no roster"): // itemRoster reports that
	default:
		e.reportRetry(itemRoutes, problem)
	}
}

// joinServices returns the join services of the roster and of the join target.
func (e *Enrolment) joinServices(file *rosterfile.File) []netip.AddrPort {
	target, _ := e.joinTarget()
	all := endpoints(target)
	if r, err := file.Read(); err == nil {
		all = append(append([]netip.AddrPort(nil), r.Join...), all...)
	}
	if len(all) == 0 && e.isControlPlane() { // the bootstrap node, before there is a roster
		all = []netip.AddrPort{e.ownJoinService()}
	}
	return all
}

// ownVoter returns the node's own join service once its etcd is a voter.
func (e *Enrolment) ownVoter() netip.AddrPort {
	if _, err := os.Stat(e.cfg.Paths.Voter); err != nil || !e.isControlPlane() {
		return netip.AddrPort{}
	}
	return e.ownJoinService()
}

func (e *Enrolment) ownJoinService() netip.AddrPort {
	return netip.AddrPortFrom(e.cfg.Facts.Address, joinPort)
}

func (e *Enrolment) setSync(s *joinclient.Sync) {
	e.mu.Lock()
	e.sync = s
	e.mu.Unlock()
	e.syncChanged.Notify()
}

// Renew has the cluster sign a certificate request. It blocks until a control plane responds or ctx ends.
func (e *Enrolment) Renew(ctx context.Context, w pki.Want, request []byte) (certificate []byte, err error) {
	for {
		changed := e.syncChanged.Wait()
		e.mu.Lock()
		s := e.sync
		e.mu.Unlock()
		if s != nil {
			answer, err := s.Renew(ctx, map[string][]byte{w.Name: request})
			return answer[w.Name], err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("sign %s: this machine has no contact with its cluster: %w", w.Name, context.Cause(ctx))
		}
	}
}

// LostKey is the path of the mark that a committed machine had to create a new key, because its key file was lost. Until the
// cluster has approved the new key, it refuses the node as an unknown machine. The refusal then does not mean that the node was
// removed from the cluster.
func LostKey(key string) string { return key + ".lost" }

// hasNewKey reports whether the cluster may not know the machine's key. It returns true if the mark cannot be checked.
func (e *Enrolment) hasNewKey() bool {
	_, err := os.Lstat(LostKey(e.cfg.Paths.Key))
	return !os.IsNotExist(err)
}

func (e *Enrolment) reportNewKey(now lock.State) {
	if !e.hasNewKey() {
		return
	}
	e.report(reconcile.Status{
		Ref: itemKey, Phase: reconcile.Failing, Error: "the machine's key was lost, and the cluster does not know the new one",
		For: wait.For{Who: fmt.Sprintf("slipway node approve %s", now.Node)},
	})
}

// acceptNewKey removes the mark of the new key. The cluster has sent a roster, so it knows the key.
func (e *Enrolment) acceptNewKey() {
	if !e.hasNewKey() {
		return
	}
	if err := os.Remove(LostKey(e.cfg.Paths.Key)); err != nil {
		e.cfg.Log.Warn("remove the mark of the new machine key", "error", err)
		return
	}
	e.forgetItem(itemKey)
	e.cfg.Board.Drop(itemKey)
}

// rosterGeneration replaces the generation by 0 while the machine's key is a new one. Then the cluster sends a roster in any case,
// which proves that it knows the key.
func (e *Enrolment) rosterGeneration(generation func() uint64) func() uint64 {
	return func() uint64 {
		if e.hasNewKey() {
			return 0
		}
		return generation()
	}
}

// WaitForAddress delays a worker's plan while the machine's address differs from the node's address in the roster. A running copy of
// the disk would compete with the original for the same Node object. It returns when the cluster has accepted the new address or
// ctx has ended, and at once if there is no sign of a copy.
func (e *Enrolment) WaitForAddress(ctx context.Context) {
	for {
		known, moved := e.movedFrom()
		if !moved {
			e.forgetItem(itemAddress)
			e.cfg.Board.Drop(itemAddress)
			return
		}
		e.report(reconcile.Status{
			Ref: itemAddress, Phase: reconcile.Failing,
			Error: fmt.Sprintf("the plan is not started at %s: the cluster knows this node at %s, and does not accept it at two addresses", e.cfg.Facts.Address, known),
			For: wait.For{Who: fmt.Sprintf("a control plane, once the machine at %s has been unreachable for a minute; or slipway node approve %s, to use this machine",
				known, e.cfg.Lock.State().Node)},
		})
		if sleep.For(ctx, addressPoll) != nil {
			return
		}
	}
}

// movedFrom returns the node's address in the stored roster and whether it is not an address of this machine. A control plane never
// moves: its etcd has a fixed address.
func (e *Enrolment) movedFrom() (known netip.Addr, moved bool) {
	now, own := e.cfg.Lock.State(), e.cfg.Facts.Address
	if now.Phase != lock.Committed || !own.IsValid() || e.isControlPlane() {
		return known, false
	}
	ca, err := readCert(e.cfg.Paths.JoinCA)
	if err != nil {
		return known, false
	}
	r, err := rosterfile.Load(e.cfg.Paths.Roster, ca)
	if err != nil {
		return known, false
	}
	for _, n := range r.Nodes {
		if n.Name == now.Node {
			known = n.Address
		}
	}
	return known, known.IsValid() && known != own && !e.cfg.Network.HasAddress(known)
}

// isControlPlane reports whether the node's plan contains etcd.
func (e *Enrolment) isControlPlane() bool {
	_, ok := e.cfg.Agent.DataGuard(etcdUnit)
	return ok
}

// joinEtcd adds this node's etcd to the cluster and waits until it is a voter. It does nothing on workers and for voters.
func (e *Enrolment) joinEtcd(ctx context.Context, s *joinclient.Sync) error {
	if !e.isControlPlane() {
		return nil
	}
	defer e.forgetItem(itemEtcd)
	for {
		if _, err := os.Stat(e.cfg.Paths.Voter); err == nil {
			return nil
		}
		if e.hasVoted() { // the file was lost. The only control plane could not get it from another one
			return e.cfg.Agent.AddFile(plan.TicketFile{Path: e.cfg.Paths.Voter, Mode: 0o600, Content: []byte("restored: etcd was a voter before\n")})
		}
		err := s.Member(ctx, joinclient.Member{
			Started: func() bool { return e.cfg.Agent.Running(etcdUnit) }, Permit: e.permitEtcd, Waiting: e.reportEtcd,
		})
		if err == nil {
			e.cfg.Pass("promoted")
			err = e.cfg.Agent.AddFile(plan.TicketFile{Path: e.cfg.Paths.Voter, Mode: 0o600, Content: []byte("promoted\n")})
			e.cfg.Pass("voter written")
		}
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			e.report(reconcile.Status{Ref: itemEtcd, Phase: reconcile.Ready})
			return nil
		}
		e.cfg.Log.Warn("join etcd", "error", err)
		e.reportRetry(itemEtcd, err.Error())
		if sleep.For(ctx, etcdJoinWait) != nil {
			return nil
		}
	}
}

// hasVoted reports whether this node's etcd was a voter before. Its mark is written after the promotion, never before.
func (e *Enrolment) hasVoted() bool {
	guard, ok := e.cfg.Agent.DataGuard(etcdUnit)
	if !ok || guard.Mark == "" {
		return false
	}
	_, err := os.Stat(guard.Mark)
	return err == nil
}

// reportEtcd reports what the node's etcd waits for: the lease that another joining member holds, or its own start.
func (e *Enrolment) reportEtcd(s joinclient.Status) {
	if s.What == "" {
		e.report(reconcile.Status{Ref: itemEtcd, Phase: reconcile.Starting, For: wait.For{What: "its own etcd", Who: etcdUnit}})
		return
	}
	e.cfg.Log.Info("waiting to join etcd", "for", s.What, "provider", s.Who, "since", s.Since)
	e.report(reconcile.Status{Ref: itemEtcd, Phase: reconcile.Waiting, For: wait.For{What: s.What, Who: s.Who, Since: s.Since}})
}

// permitEtcd writes the permit with which etcd starts. Data of an etcd with another permit is deleted: that member was removed from
// the cluster before it became a voter, so the data is worthless.
func (e *Enrolment) permitEtcd(content []byte, discard bool) error {
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
	return e.cfg.Agent.AddFile(plan.TicketFile{Path: e.cfg.Paths.Permit, Mode: 0o600, Content: content})
}

// revokeEtcdBootstrap changes the permit to bootstrap an etcd cluster, which only an init writes, into one to join the existing
// cluster. From then on an etcd without data cannot create a second cluster. An etcd with data does not read its permit.
func (e *Enrolment) revokeEtcdBootstrap() {
	have, err := os.ReadFile(e.cfg.Paths.Permit)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	revoked := bytes.Replace(have, []byte("_CLUSTER_STATE=new"), []byte("_CLUSTER_STATE=existing"), 1)
	if err == nil && !bytes.Equal(have, revoked) {
		e.cfg.Pass("spend the etcd permit")
		err = durable.WriteFile(e.cfg.Paths.Permit, 0o600, revoked)
	}
	if err != nil { // the data guard also prevents a second bootstrap, and the next start of the agent retries
		e.cfg.Log.Error("revoke the permit to bootstrap etcd", "error", err)
	}
}
