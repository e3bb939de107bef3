// SPDX-License-Identifier: Apache-2.0

package enrol

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"

	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/node"
	"github.com/slipway-project/slipway/internal/node/lock"
)

const targetSchema = 1

// recall reads which cluster to join. A target that cannot be read is no reason to stop: whoever gave it can give it again, and a
// machine that is in a cluster does not need it.
func (e *Enrolment) recall() error {
	var t node.JoinTarget
	err := durable.Load(e.cfg.Paths.Target, targetSchema, &t)
	switch {
	case err == nil:
		e.target = &t
	case errors.Is(err, fs.ErrNotExist):
	case errors.Is(err, durable.ErrDamaged), errors.Is(err, durable.ErrSchema), e.cfg.Lock.State().Phase == lock.Committed:
		e.cfg.Log.Error("which cluster to join cannot be read: tell it again", "error", err)
	default:
		return fmt.Errorf("read which cluster to join: %w", err)
	}
	return nil
}

// Join keeps which cluster to join. On a machine that is in that cluster already it changes nothing, unless the machine has lost
// where the others are.
func (e *Enrolment) Join(_ context.Context, t node.JoinTarget) error {
	if !t.Pin.Valid() {
		return fmt.Errorf("the pin %q is not \"sha256:\" and 64 hex digits: slipway token create prints it", t.Pin)
	}
	if len(t.Endpoints) == 0 {
		return errors.New("no endpoint of a join service is named: host:port")
	}
	for _, at := range t.Endpoints {
		if _, err := netip.ParseAddrPort(at); err != nil {
			return fmt.Errorf("endpoint %q: not address:port, such as 192.0.2.10:9440", at)
		}
	}
	now := e.cfg.Lock.State()
	if now.Phase == lock.Committed {
		if now.Cluster == t.Pin.ClusterID() {
			return e.remind(t)
		}
		return fmt.Errorf("this machine is in cluster %s: take it out first (slipway node remove, slipway node reset)", now.Cluster)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.keepLocked(&t)
}

// remind keeps where the others are, on a node that does not know it any more. It needs no token.
func (e *Enrolment) remind(t node.JoinTarget) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.target != nil {
		return nil
	}
	t.Token = ""
	return e.keepLocked(&t)
}

func (e *Enrolment) keepLocked(t *node.JoinTarget) error {
	if err := durable.Save(e.cfg.Paths.Target, targetSchema, *t); err != nil {
		return fmt.Errorf("keep which cluster to join: %w", err)
	}
	e.target = t
	close(e.told)
	e.told = make(chan struct{})
	return nil
}

// spendToken forgets a token that has done its work.
func (e *Enrolment) spendToken() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.target == nil || e.target.Token == "" {
		return nil
	}
	t := *e.target
	t.Token = ""
	for range 2 { // the generation before holds it, too
		e.cfg.Pass("spend token")
		if err := e.keepLocked(&t); err != nil {
			return err
		}
	}
	return nil
}

// aim is the target as it is now, and a channel that is closed when there is another one.
func (e *Enrolment) aim() (t *node.JoinTarget, changed <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.target, e.told
}

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
