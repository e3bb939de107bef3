// SPDX-License-Identifier: Apache-2.0

// Package enrol manages a machine's membership in a cluster. While the machine is free, it serves init requests and, once it has a
// join target, asks that cluster to admit it; whichever claims the node lock first gets the machine. Once the machine is committed
// to a cluster, the package syncs with the cluster's control planes, renews certificates, keeps the routes to other nodes and adds
// this node's etcd to the cluster. A reset makes the machine free again.
//
// A committed node starts from its own disk: none of this is a precondition of its plan. The package does not plan and makes no
// decisions for the cluster.
//
// Read [Enrolment.Run] first, then join.go and member.go.
package enrol

import (
	"context"
	"crypto/ecdsa"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/attest"
	"github.com/slipway-project/slipway/internal/broadcast"
	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/node"
	"github.com/slipway-project/slipway/internal/node/joinclient"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/node/routes"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// Config lists the dependencies of an Enrolment.
type Config struct {
	Lock    *lock.Lock
	Agent   *node.Agent
	Board   *reconcile.Board
	Facts   machine.Facts
	Key     *ecdsa.PrivateKey // the machine's key
	Custody Custody
	Network Network
	Paths   Paths
	// Prover returns how the machine proves its right to join the target.
	Prover  func(node.JoinTarget) attest.Prover
	Slipway string // version of this program
	Log     *slog.Logger

	Now    func() time.Time  // optional: the clock that checks certificates; default time.Now
	Random func(n int) int   // optional: a number in [0, n); default math/rand/v2
	Pass   func(step string) // optional: called between any two actions that a crash may separate
}

// Custody creates keys on this machine for certificates that are signed elsewhere.
type Custody interface {
	// Request creates a key and a certificate request. finish stores the key with the signed certificate.
	Request(w pki.Want) (request []byte, finish func(certificate []byte) error, err error)
}

// Network is the machine's connection to other machines. [HostNetwork] is the real one.
type Network interface {
	// Listen opens the listener of the init service.
	Listen(ctx context.Context) (net.Listener, error)
	// Dialer connects to the join services of the cluster with this join CA. nil means TLS from the machine's address.
	Dialer(ca pin.Pin) joinclient.Dialer
	// Clock asks the join services of the cluster with this join CA for the time. nil means TLS from the machine's address.
	Clock(ca pin.Pin) joinclient.Clock
	// KeepRoutes maintains the routes to other nodes' pods until ctx ends; see [routes.Keep].
	KeepRoutes(ctx context.Context, c routes.Config) error
	// HasAddress reports whether an interface of the machine has the address. It returns true if that is unknown.
	HasAddress(a netip.Addr) bool
}

// HostNetwork is the network of the host that the agent runs on.
type HostNetwork struct {
	InitPort int // of the init service
}

// Listen implements [Network].
func (h HostNetwork) Listen(ctx context.Context) (net.Listener, error) {
	return (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf(":%d", h.InitPort))
}

// Dialer implements [Network].
func (HostNetwork) Dialer(pin.Pin) joinclient.Dialer { return nil }

// Clock implements [Network].
func (HostNetwork) Clock(pin.Pin) joinclient.Clock { return nil }

// KeepRoutes implements [Network].
func (HostNetwork) KeepRoutes(ctx context.Context, c routes.Config) error { return routes.Keep(ctx, c) }

// HasAddress implements [Network].
func (HostNetwork) HasAddress(a netip.Addr) bool {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return true
	}
	for _, one := range all {
		if p, err := netip.ParsePrefix(one.String()); err == nil && p.Addr().Unmap() == a {
			return true
		}
	}
	return false
}

// Paths are files on the machine.
type Paths struct {
	Key     string // private key of the machine; Config.Key was read from it
	Secret  string // hash of the init secret
	Request string // the init request
	Target  string // the cluster to join
	JoinCA  string // certificate of the cluster's join CA
	Roster  string
	Admin   string // the administrator's kubeconfig
	Create  string // permit to create a cluster
	Permit  string // permit for etcd's first start
	Voter   string // exists once this node's etcd is a voter
	Root    string // optional: prefix of all these paths that is not part of the plan's paths; for simulated machines
}

// Enrolment is the membership of one machine. It implements node.Enrolment. It is safe for concurrent use.
type Enrolment struct {
	cfg Config

	targetChanged broadcast.Signal
	syncChanged   broadcast.Signal

	mu     sync.Mutex // guards the fields below
	target *node.JoinTarget
	items  map[string]reconcile.Status // our items of the board, by reference
	sync   *joinclient.Sync            // nil while the machine is not a member of a cluster

	resetOnce sync.Once
	reset     chan struct{} // closed when the machine was reset, so the agent must restart

	resetting chan struct{} // a semaphore: one reset at a time
}

// New loads the join target, if the machine has one.
func New(cfg Config) (*Enrolment, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Pass == nil {
		cfg.Pass = func(string) {}
	}
	e := &Enrolment{cfg: cfg, reset: make(chan struct{}), resetting: make(chan struct{}, 1), items: map[string]reconcile.Status{}}
	if err := e.loadTarget(); err != nil {
		return nil, err
	}
	return e, nil
}

// ErrReset ends [Enrolment.Run] after a reset. The machine has a new identity, so the agent must restart.
var ErrReset = errors.New("the machine was reset, restart the agent")

// Run manages the membership until ctx ends. It returns an error that says what to do if the disk contradicts the node lock, and
// [ErrReset] after a reset.
func (e *Enrolment) Run(ctx context.Context) error {
	if err := e.finishInterrupted(ctx); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return e.serveInit(ctx) })
	group.Go(func() error { return e.followLock(ctx) })
	group.Go(func() error {
		select {
		case <-e.reset:
			return ErrReset
		case <-ctx.Done():
			return nil
		}
	})
	return group.Wait()
}

// finishInterrupted completes an interrupted wipe, undoes an interrupted join, and returns an error for states that cannot be repaired.
func (e *Enrolment) finishInterrupted(ctx context.Context) error {
	e.resetting <- struct{}{} // a concurrent Reset waits until the wipe is complete
	defer func() { <-e.resetting }()
	now := e.cfg.Lock.State()
	_, installed := e.cfg.Agent.Installed()
	switch {
	case e.cfg.Agent.Wiping(), now.Phase == lock.Claimed && now.By == lock.Join:
		// The wipe needs the agent's loop. Run's caller has started it.
		if now.Phase != lock.Committed { // an undone join: the machine keeps its key and its target
			return e.cfg.Agent.Wipe(ctx, e.releaseLock)
		}
		return e.wipe(ctx)
	case now.Phase == lock.Free && installed:
		return errors.New("this machine has a node's plan, but its node lock is free: the lock was lost. " +
			"Restore it from a backup, or remove the node from its cluster (slipway node remove) and reinstall the machine")
	case now.Phase == lock.Committed && !installed:
		e.report(reconcile.Status{
			Ref: itemLock, Phase: reconcile.Failing, For: wait.For{Who: "slipway up"},
			Error: fmt.Sprintf("this machine is a node of cluster %s, but its plan is missing", now.Cluster),
		})
	}
	return nil
}

// releaseLock frees the node lock, whatever its phase.
func (e *Enrolment) releaseLock() error {
	e.cfg.Pass("free")
	defer e.cfg.Pass("freed")
	switch now := e.cfg.Lock.State(); now.Phase {
	case lock.Claimed:
		return e.cfg.Lock.Release(now.ID)
	case lock.Committed:
		return e.cfg.Lock.Reset(now.Cluster)
	case lock.Free:
	}
	return nil
}

// followLock runs the work that belongs to the phase of the node lock, and cancels it when the phase changes. A join continues
// after it has claimed the lock.
func (e *Enrolment) followLock(ctx context.Context) error {
	for ctx.Err() == nil {
		now := e.cfg.Lock.State()
		work := func(context.Context) error { return nil } // claimed by init, which has its own goroutine
		switch now.Phase {
		case lock.Free:
			work = e.runJoin
		case lock.Committed:
			work = func(ctx context.Context) error { return e.runMember(ctx, now) }
		case lock.Claimed:
		}
		working, stop := context.WithCancel(ctx)
		watching, failed := context.WithCancel(ctx)
		var group errgroup.Group
		group.Go(func() error {
			err := work(working)
			if err != nil {
				failed()
			}
			return err
		})
		_, _ = e.cfg.Lock.Wait(watching, func(s lock.State) bool { // its only error is that watching has ended
			ours := now.Phase == lock.Free && s.Phase == lock.Claimed && s.By == lock.Join
			return s.Phase != now.Phase && !ours
		})
		stop()
		failed()
		if err := group.Wait(); err != nil {
			return err
		}
	}
	return nil
}

// State returns the phase of the node lock and, once the machine is committed, its cluster and node name.
func (e *Enrolment) State() node.Enrolled {
	now := e.cfg.Lock.State()
	return node.Enrolled{Phase: string(now.Phase), Cluster: now.Cluster, Node: now.Node}
}

// Items of the board.
const (
	itemLock    = "node/lock"    // while the machine is not a member of a cluster
	itemRoster  = "node/roster"  // whether the node is in contact with the cluster
	itemRoutes  = "node/routes"  // routes to other nodes' pods; only after the first problem
	itemKey     = "node/key"     // only while the machine's key is a new one that the cluster does not know
	itemAddress = "node/address" // only while the cluster knows the node at another address
	itemEtcd    = "node/etcd"    // on a joined control plane, until its etcd is a voter
)

// report sets one of our items on the board. Announce sets it again after the board was reset.
func (e *Enrolment) report(s reconcile.Status) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.items[s.Ref] = s
	e.cfg.Board.Set(s)
}

// reportRetry reports an error of an operation that is retried.
func (e *Enrolment) reportRetry(ref, problem string) {
	e.report(reconcile.Status{Ref: ref, Phase: reconcile.Failing, Error: problem, For: wait.For{Who: "this machine, which retries"}})
}

// forgetItem excludes an item from later announcements. The item stays on the board.
func (e *Enrolment) forgetItem(ref string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.items, ref)
}

// Announce sets our items on the board after it was reset.
func (e *Enrolment) Announce() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.items {
		e.cfg.Board.Set(s)
	}
}

// statusText is what a join client waits for, with the last answer in parentheses.
func statusText(s joinclient.Status) string {
	if s.Detail == "" {
		return s.What
	}
	return s.What + " (" + s.Detail + ")"
}
