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

// askLimit is how long the cluster may take to say whether it still counts on this machine. It is longer than an API server takes
// that starts again, which it does while etcd's members change.
const askLimit = 30 * time.Second

// Reset takes the machine out of its cluster. The cluster must have let it go before: what it still counts on is not taken away.
// lost says that nobody is left to ask. One that was broken off goes on by itself at the agent's start: who asks meanwhile waits
// for that, and its end is theirs.
func (e *Enrolment) Reset(ctx context.Context, cluster string, lost bool) error {
	asked := e.cfg.Lock.State()
	select {
	case e.resetting <- struct{}{}:
		defer func() { <-e.resetting }()
	case <-ctx.Done():
		return fmt.Errorf("wait for the reset that is under way: %w", ctx.Err())
	}
	now := e.cfg.Lock.State()
	switch {
	case now.Phase == lock.Free && asked.Phase == lock.Committed && asked.Cluster == cluster:
		return nil
	case now.Phase != lock.Committed:
		return fmt.Errorf("this machine is %s: there is nothing to reset", now)
	case cluster != now.Cluster:
		return fmt.Errorf("this machine belongs to cluster %s, not to %q: name the one that it is in", now.Cluster, cluster)
	}
	if !lost && !e.cfg.Agent.Wiping() { // what has begun is not asked for again: the way to ask may be gone
		if err := e.letGo(ctx, now); err != nil {
			return err
		}
	}
	return e.anew(ctx)
}

// ErrAnew ends Run after a reset: the next agent finds a machine that nobody knows.
var ErrAnew = errors.New("the machine was reset: the agent starts anew")

// anew takes everything off a committed machine and makes it another one: what was let go as one identity does not come back as
// that. The identity goes before the lock opens, so that wherever this is broken off, a machine that is free has nothing to forget:
// one whose join was undone keeps its key and its target.
func (e *Enrolment) anew(ctx context.Context) error {
	err := e.cfg.Agent.Wipe(ctx, func() error {
		if err := e.forget(); err != nil {
			return err
		}
		return e.free()
	})
	if err != nil {
		return err
	}
	e.once.Do(func() { close(e.again) })
	return nil
}

// letGo is nil when the cluster says that this machine is no longer one of its nodes.
func (e *Enrolment) letGo(ctx context.Context, now lock.State) error {
	if e.hasLostKey() { // the cluster would say no to it in any case
		return fmt.Errorf("ask cluster %s whether it has let this machine go: the machine has lost its key, and is a stranger to it: "+
			"let it in with slipway node approve %s; or run slipway node remove %s, and then reset it with --lost", now.Cluster, now.Node, now.Node)
	}
	ca, err := readCert(e.cfg.Paths.JoinCA)
	if err != nil {
		return fmt.Errorf("ask the cluster: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	file := rosterfile.Open(e.cfg.Paths.Roster, ca)
	gone, err := joinclient.LetGo(ctx, joinclient.SyncConfig{
		Now: e.cfg.Now, Clock: e.cfg.Clock(pin.OfCertificate(ca)),
		Dial: e.cfg.Dial(pin.OfCertificate(ca)), Random: e.cfg.Random,
		Endpoints: func() []netip.AddrPort { return e.others(file) }, Pin: pin.OfCertificate(ca), Key: e.cfg.Key, Node: now.Node,
		Slipway: e.cfg.Slipway, Log: e.cfg.Log, From: func() netip.Addr { return e.cfg.Facts.Address },
	})
	switch {
	case err != nil:
		return fmt.Errorf("ask cluster %s whether it has let this machine go: %w: bring it back, or say that it is lost for good (--lost)", now.Cluster, err)
	case !gone:
		return fmt.Errorf("cluster %s still counts on %s: run slipway node remove %s first", now.Cluster, now.Node, now.Node)
	}
	return nil
}

// others are the join services of other machines: what this one's own knows may be old.
func (e *Enrolment) others(file *rosterfile.File) []netip.AddrPort {
	return slices.DeleteFunc(e.places(file), func(at netip.AddrPort) bool { return at.Addr() == e.cfg.Facts.Address })
}

// forget removes what told the machine where to go, and who it was.
func (e *Enrolment) forget() error {
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
