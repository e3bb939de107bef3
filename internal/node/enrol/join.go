// SPDX-License-Identifier: Apache-2.0

package enrol

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/node"
	"github.com/slipway-project/slipway/internal/node/joinclient"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/reconcile"
	"github.com/slipway-project/slipway/internal/sleep"
)

const targetSchema = 1

// loadTarget reads the join target. An unreadable target is not an error: the operator can set it again, and a committed machine
// does not need it.
func (e *Enrolment) loadTarget() error {
	var t node.JoinTarget
	err := durable.Load(e.cfg.Paths.Target, targetSchema, &t)
	switch {
	case err == nil:
		e.target = &t
	case errors.Is(err, fs.ErrNotExist):
	case errors.Is(err, durable.ErrDamaged), errors.Is(err, durable.ErrSchema), e.cfg.Lock.State().Phase == lock.Committed:
		e.cfg.Log.Error("read join target: run slipway join again", "error", err)
	default:
		return fmt.Errorf("read join target: %w", err)
	}
	return nil
}

// Join stores the cluster to join and returns when that is on the disk. On a machine that is in this cluster already, it only
// replaces a missing target, which contains the addresses of the control planes.
func (e *Enrolment) Join(_ context.Context, t node.JoinTarget) error {
	if !t.Pin.Valid() {
		return fmt.Errorf("invalid pin %q: want \"sha256:\" and 64 hex digits, as slipway token create prints it", t.Pin)
	}
	if len(t.Endpoints) == 0 {
		return errors.New("no endpoint of a join service: want ADDRESS:PORT")
	}
	for _, at := range t.Endpoints {
		if _, err := netip.ParseAddrPort(at); err != nil {
			return fmt.Errorf("invalid endpoint %q: want ADDRESS:PORT, such as 192.0.2.10:9440", at)
		}
	}
	now := e.cfg.Lock.State()
	e.mu.Lock()
	defer e.mu.Unlock()
	if now.Phase == lock.Committed {
		if now.Cluster != t.Pin.ClusterID() {
			return fmt.Errorf("this machine is in cluster %s: remove it from there first (slipway node remove, slipway node reset)", now.Cluster)
		}
		if e.target != nil {
			return nil
		}
		t.Token = "" // a member does not need one
	}
	return e.storeTargetLocked(&t)
}

func (e *Enrolment) storeTargetLocked(t *node.JoinTarget) error {
	if err := durable.Save(e.cfg.Paths.Target, targetSchema, *t); err != nil {
		return fmt.Errorf("write join target: %w", err)
	}
	e.target = t
	e.targetChanged.Notify()
	return nil
}

// deleteToken removes the used token from the join target.
func (e *Enrolment) deleteToken() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.target == nil || e.target.Token == "" {
		return nil
	}
	t := *e.target
	t.Token = ""
	for range 2 { // the previous generation of the file contains the token, too
		e.cfg.Pass("spend token")
		if err := e.storeTargetLocked(&t); err != nil {
			return err
		}
	}
	return nil
}

// joinTarget returns the current target, or nil, and a channel that is closed when it changes.
func (e *Enrolment) joinTarget() (t *node.JoinTarget, changed <-chan struct{}) {
	changed = e.targetChanged.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.target, changed
}

// endpoints returns the endpoints of a target, which may be nil.
func endpoints(t *node.JoinTarget) (all []netip.AddrPort) {
	if t == nil {
		return nil
	}
	for _, at := range t.Endpoints {
		if a, err := netip.ParseAddrPort(at); err == nil {
			all = append(all, a)
		}
	}
	return all
}

// joinRetry is the delay after a join that failed on this machine.
const joinRetry = 2 * time.Second

// runJoin tries to join the target's cluster until the machine is claimed, by this join or by init.
func (e *Enrolment) runJoin(ctx context.Context) error {
	for {
		target, changed := e.joinTarget()
		if target == nil {
			e.report(reconcile.Status{Ref: itemLock, Phase: reconcile.Waiting, For: wait.For{What: "a cluster to join", Who: "slipway up, init or join"}})
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				return nil
			}
		}
		joining, cancel := context.WithCancel(ctx)
		go func() {
			select {
			case <-changed:
				cancel()
			case <-joining.Done():
			}
		}()
		err := e.join(joining, *target)
		cancel()
		var taken *lock.TakenError
		switch {
		case ctx.Err() != nil, err == nil, errors.As(err, &taken):
			return nil //nolint:nilerr // the lock has changed, or is about to
		case joining.Err() != nil:
			continue
		}
		e.cfg.Log.Error("join cluster", "error", err)
		e.reportRetry(itemLock, err.Error())
		if sleep.For(ctx, joinRetry) != nil {
			return nil //nolint:nilerr // ctx has ended
		}
	}
}

// join is one join, from the first request to the commit. If it fails after the claim, it is undone.
func (e *Enrolment) join(ctx context.Context, target node.JoinTarget) error {
	keys := &keys{custody: e.cfg.Custody, pass: e.cfg.Pass, pending: map[string]pendingKey{}}
	e.cfg.Pass("ask")
	grant, err := joinclient.Join(ctx, joinclient.Config{
		Endpoints: func() []netip.AddrPort { return endpoints(&target) }, Pin: target.Pin, Key: e.cfg.Key, Keys: keys, Facts: e.cfg.Facts,
		Slipway: e.cfg.Slipway, Log: e.cfg.Log, Node: target.Node, Prover: e.cfg.Prover(target),
		Dial: e.cfg.Network.Dialer(target.Pin), Now: e.cfg.Now, Clock: e.cfg.Network.Clock(target.Pin), Random: e.cfg.Random,
		Report: func(s joinclient.Status) {
			e.report(reconcile.Status{Ref: itemLock, Phase: reconcile.Waiting, For: wait.For{What: statusText(s), Who: s.Who, Since: s.Since}})
		},
	})
	if err != nil {
		return err
	}
	random := make([]byte, 8)
	_, _ = rand.Read(random) // never fails
	id := "join-" + hex.EncodeToString(random)
	e.cfg.Pass("claim")
	if err := e.cfg.Lock.Claim(lock.Join, id); err != nil {
		return err
	}
	e.forgetItem(itemLock)
	e.cfg.Pass("claimed")
	err = e.cfg.Agent.Install(ctx, grant.Ticket, grant.Secrets, func() error { return keys.finish(grant.Certificates) })
	if err == nil {
		e.cfg.Pass("commit")
		err = e.cfg.Lock.Commit(id, grant.Ticket.Cluster, grant.Ticket.Plan.Node)
	}
	if errors.Is(err, lock.ErrInDoubt) {
		return err // the machine may be committed: it must not be wiped. The next start of the agent decides
	}
	if err != nil {
		undo := context.WithoutCancel(ctx)
		return errors.Join(err, e.cfg.Agent.Wipe(undo, e.releaseLock))
	}
	e.cfg.Pass("committed")
	return e.deleteToken()
}

// keys are the keys of one join. Each is created once per Want, and written when its certificate has arrived.
type keys struct {
	custody Custody
	pass    func(step string)

	mu      sync.Mutex            // guards pending
	pending map[string]pendingKey // by the name of the Want
}

type pendingKey struct {
	request []byte
	finish  func(certificate []byte) error
}

// Request returns the certificate request for a Want, the same one at each call.
func (k *keys) Request(w pki.Want) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if p, ok := k.pending[w.Name]; ok {
		return p.request, nil
	}
	k.pass("granted " + w.Name)
	request, finish, err := k.custody.Request(w)
	if err != nil {
		return nil, err
	}
	k.pending[w.Name] = pendingKey{request, finish}
	return request, nil
}

func (k *keys) finish(certificates map[string][]byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, pem := range certificates {
		p, ok := k.pending[name]
		if !ok {
			return fmt.Errorf("certificate %s was not requested", name)
		}
		k.pass("write " + name)
		if err := p.finish(pem); err != nil {
			return err
		}
	}
	return nil
}
