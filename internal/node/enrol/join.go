// SPDX-License-Identifier: Apache-2.0

package enrol

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/node"
	"github.com/slipway-project/slipway/internal/node/joinclient"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/reconcile"
	"github.com/slipway-project/slipway/internal/sleep"
)

// joins asks to be let in until somebody has claimed the machine: this flow, or init.
func (e *Enrolment) joins(ctx context.Context) error {
	for {
		target, changed := e.aim()
		if target == nil {
			e.say(reconcile.Status{Ref: itemLock, Phase: reconcile.Waiting, For: wait.For{What: "a cluster to belong to", Who: "slipway up, init or join"}})
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				return nil
			}
		}
		trying, cancel := context.WithCancel(ctx)
		go func() {
			select {
			case <-changed: // another cluster is meant
				cancel()
			case <-trying.Done():
			}
		}()
		err := e.join(trying, *target)
		cancel()
		var taken *lock.TakenError
		switch {
		case ctx.Err() != nil, err == nil, errors.As(err, &taken):
			return nil //nolint:nilerr // the lock has changed, or is about to
		case trying.Err() != nil:
			continue
		}
		e.cfg.Log.Error("join undone", "error", err)
		e.say(reconcile.Status{Ref: itemLock, Phase: reconcile.Failing, Error: err.Error(), For: wait.For{Who: "this machine, which tries again"}})
		if sleep.For(ctx, joinAgain) != nil {
			return nil //nolint:nilerr // ctx has ended
		}
	}
}

const joinAgain = 2 * time.Second

// join is one join from the first question to the commit. A claim that fails is undone.
func (e *Enrolment) join(ctx context.Context, target node.JoinTarget) error {
	keys := &keys{custody: e.cfg.Custody, pass: e.cfg.Pass, made: map[string]made{}}
	e.cfg.Pass("ask")
	grant, err := joinclient.Join(ctx, joinclient.Config{
		Endpoints: func() []netip.AddrPort { return endpoints(&target) }, Pin: target.Pin, Key: e.cfg.Key, Keys: keys, Facts: e.cfg.Facts,
		Slipway: e.cfg.Slipway, Log: e.cfg.Log, Node: target.Node, Prover: e.cfg.Prover(target),
		Dial: e.cfg.Dial(target.Pin), Now: e.cfg.Now, Clock: e.cfg.Clock(target.Pin), Random: e.cfg.Random,
		Report: func(s joinclient.Status) {
			e.say(reconcile.Status{Ref: itemLock, Phase: reconcile.Waiting, For: wait.For{What: withDetail(s), Who: s.Who, Since: s.Since}})
		},
	})
	if err != nil {
		return err
	}
	id := "join-" + random()
	e.cfg.Pass("claim")
	if err := e.cfg.Lock.Claim(lock.Join, id); err != nil {
		return err
	}
	e.unsay(itemLock)
	e.cfg.Pass("claimed")
	err = e.cfg.Agent.Install(ctx, grant.Ticket, grant.Secrets, func() error { return keys.finish(grant.Certificates) })
	if err == nil {
		e.cfg.Pass("commit")
		err = e.cfg.Lock.Commit(id, grant.Ticket.Cluster, grant.Ticket.Plan.Node)
	}
	if errors.Is(err, lock.ErrInDoubt) {
		return err // nothing may be undone then; the next start settles it
	}
	if err != nil {
		undo := context.WithoutCancel(ctx)
		return errors.Join(err, e.cfg.Agent.Wipe(undo, e.free))
	}
	e.cfg.Pass("committed")
	return e.spendToken()
}

func withDetail(s joinclient.Status) string {
	if s.Detail == "" {
		return s.What
	}
	return s.What + " (" + s.Detail + ")"
}

// keys are those of one join: made once for each Want, written when their certificates are there.
type keys struct {
	custody Custody
	pass    func(step string)

	mu   sync.Mutex // guards made
	made map[string]made
}

type made struct {
	request []byte
	finish  func(certificate []byte) error
}

// Request gives the same request for the same Want.
func (k *keys) Request(w pki.Want) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if m, ok := k.made[w.Name]; ok {
		return m.request, nil
	}
	k.pass("granted " + w.Name)
	request, finish, err := k.custody.Request(w)
	if err != nil {
		return nil, err
	}
	k.made[w.Name] = made{request, finish}
	return request, nil
}

func (k *keys) finish(certificates map[string][]byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, pem := range certificates {
		m, ok := k.made[name]
		if !ok {
			return fmt.Errorf("a certificate %s came that nobody asked for", name)
		}
		k.pass("write " + name)
		if err := m.finish(pem); err != nil {
			return err
		}
	}
	return nil
}

func random() string {
	raw := make([]byte, 8)
	_, _ = rand.Read(raw) // never fails
	return hex.EncodeToString(raw)
}
