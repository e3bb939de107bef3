// SPDX-License-Identifier: Apache-2.0

package enrol

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/node/joinclient"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/node/rosterfile"
)

// removedLimit is how long the cluster may take to answer whether it has removed this node. It is longer than a restart of the API
// server, which happens while etcd's members change.
const removedLimit = 30 * time.Second

// Reset makes the machine free again. The cluster must have removed the node before; lost skips this check, for a cluster that no
// longer exists. An interrupted reset continues when the agent starts; a Reset called meanwhile waits for it and returns its result.
func (e *Enrolment) Reset(ctx context.Context, cluster string, lost bool) error {
	before := e.cfg.Lock.State()
	select {
	case e.resetting <- struct{}{}:
		defer func() { <-e.resetting }()
	case <-ctx.Done():
		return fmt.Errorf("wait for the reset that is in progress: %w", ctx.Err())
	}
	now := e.cfg.Lock.State()
	switch {
	case now.Phase == lock.Free && before.Phase == lock.Committed && before.Cluster == cluster:
		return nil
	case now.Phase != lock.Committed:
		return fmt.Errorf("nothing to reset: this machine is %s", now)
	case cluster != now.Cluster:
		return fmt.Errorf("this machine is in cluster %s, not in %q: specify the cluster that it is in", now.Cluster, cluster)
	}
	if !lost && !e.cfg.Agent.Wiping() { // once the wipe has begun, the connection to the cluster may be gone
		if err := e.checkRemoved(ctx, now); err != nil {
			return err
		}
	}
	return e.wipe(ctx)
}

// wipe removes everything from a committed machine, including its identity: a machine that was removed from a cluster must not
// return as the same one. The identity is deleted before the lock is freed, so a free machine never has leftovers of a membership,
// even after a crash.
func (e *Enrolment) wipe(ctx context.Context) error {
	err := e.cfg.Agent.Wipe(ctx, func() error {
		if err := e.deleteIdentity(); err != nil {
			return err
		}
		return e.releaseLock()
	})
	if err != nil {
		return err
	}
	e.resetOnce.Do(func() { close(e.reset) })
	return nil
}

// checkRemoved returns nil if the cluster confirms that it has removed this node.
func (e *Enrolment) checkRemoved(ctx context.Context, now lock.State) error {
	if e.hasNewKey() { // the cluster refuses an unknown key in any case
		return fmt.Errorf("ask cluster %s whether it has removed this node: the machine has lost its key, and the cluster does not know the new one: "+
			"approve it with slipway node approve %s; or run slipway node remove %s, and then reset the machine with --lost", now.Cluster, now.Node, now.Node)
	}
	ca, err := readCert(e.cfg.Paths.JoinCA)
	if err != nil {
		return fmt.Errorf("ask cluster %s whether it has removed this node: %w", now.Cluster, err)
	}
	ctx, cancel := context.WithTimeout(ctx, removedLimit)
	defer cancel()
	file := rosterfile.Open(e.cfg.Paths.Roster, ca)
	others := func() []netip.AddrPort { // this machine's own join service may have outdated records
		return slices.DeleteFunc(e.joinServices(file), func(at netip.AddrPort) bool { return at.Addr() == e.cfg.Facts.Address })
	}
	removed, err := joinclient.Removed(ctx, joinclient.SyncConfig{
		Now: e.cfg.Now, Clock: e.cfg.Network.Clock(pin.OfCertificate(ca)),
		Dial: e.cfg.Network.Dialer(pin.OfCertificate(ca)), Random: e.cfg.Random,
		Endpoints: others, Pin: pin.OfCertificate(ca), Key: e.cfg.Key, Node: now.Node,
		Slipway: e.cfg.Slipway, Log: e.cfg.Log, From: func() netip.Addr { return e.cfg.Facts.Address },
	})
	switch {
	case err != nil:
		return fmt.Errorf("ask cluster %s whether it has removed this node: %w: make the cluster reachable, or pass --lost if it no longer exists", now.Cluster, err)
	case !removed:
		return fmt.Errorf("%s is still a node of cluster %s: run slipway node remove %s first", now.Node, now.Cluster, now.Node)
	}
	return nil
}

// deleteIdentity removes the machine's key, its join target, its init secret and its init request.
func (e *Enrolment) deleteIdentity() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.target = nil
	var errs []error
	for _, path := range []string{e.cfg.Paths.Key, LostKey(e.cfg.Paths.Key), e.cfg.Paths.Target, e.cfg.Paths.Target + ".prev", e.cfg.Paths.Secret, e.cfg.Paths.Request, e.cfg.Paths.Request + ".prev"} {
		e.cfg.Pass("forget " + filepath.Base(path))
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
