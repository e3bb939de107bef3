// SPDX-License-Identifier: Apache-2.0

package enrol

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/node/initserver"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/reconcile"
	"github.com/slipway-project/slipway/internal/rpc"
	"github.com/slipway-project/slipway/internal/sleep"
)

// serveInit serves the init service if the machine has an init secret. After the commit, the service remains available for a while,
// so that a client that has lost the result can fetch it.
func (e *Enrolment) serveInit(ctx context.Context) error {
	now, wanted := e.waitForSecret(ctx)
	if !wanted {
		return nil
	}
	s, err := initserver.New(initserver.Config{
		Lock: e.cfg.Lock, Machine: bootstrapNode{e}, Slipway: e.cfg.Slipway, SecretFile: e.cfg.Paths.Secret, RequestFile: e.cfg.Paths.Request, Log: e.cfg.Log,
		Pass:        func(step string) { e.cfg.Pass("init " + step) },
		Certificate: func() (*tls.Certificate, error) { return rpc.SelfSigned(e.cfg.Key, "slipway machine", e.cfg.Now()) },
	})
	if err != nil {
		e.cfg.Log.Error("start init service", "error", err)
		if now.Phase == lock.Claimed && now.By == lock.Init { // nothing else continues the request
			e.report(reconcile.Status{
				Ref: itemLock, Phase: reconcile.Failing, Error: err.Error(),
				For: wait.For{Since: now.Since, Who: "the slipway version that started the init; otherwise reinstall the machine"},
			})
		}
		return nil
	}
	ln, err := e.cfg.Network.Listen(ctx)
	if err != nil {
		return fmt.Errorf("listen for init requests: %w", err)
	}
	return s.Run(ctx, ln)
}

// secretPoll is how often a free machine looks for an init secret, which an operator may create at any time.
const secretPoll = time.Second

// waitForSecret waits until there is an init secret, or an init request to continue. It returns false if the machine is a member of
// a cluster or ctx has ended.
func (e *Enrolment) waitForSecret(ctx context.Context) (lock.State, bool) {
	for {
		now := e.cfg.Lock.State()
		if now.Phase == lock.Claimed && now.By == lock.Init {
			return now, true
		}
		if _, err := os.Stat(e.cfg.Paths.Secret); !errors.Is(err, fs.ErrNotExist) {
			return now, true // on a committed machine, the client may still fetch the result
		}
		if now.Phase == lock.Committed || sleep.For(ctx, secretPoll) != nil {
			return now, false
		}
	}
}

// bootstrapNode implements initserver.Machine.
type bootstrapNode struct{ *Enrolment }

// Facts implements initserver.Machine.
func (b bootstrapNode) Facts() machine.Facts { return b.cfg.Facts }

// Install starts the ticket's plan.
func (b bootstrapNode) Install(ctx context.Context, t plan.Ticket) error {
	b.forgetItem(itemLock)
	return b.cfg.Agent.Install(ctx, t, nil, nil)
}

// Wipe removes what Install and the plan have created. The init service releases the lock itself.
func (b bootstrapNode) Wipe(ctx context.Context) error {
	return b.cfg.Agent.Wipe(ctx, func() error { return nil })
}

// Established waits until the API server, the administrator's kubeconfig and the join CA are ready. Meanwhile it reports all changes
// of the board.
func (b bootstrapNode) Established(ctx context.Context, report func(initserver.Event)) (initserver.Result, error) {
	reporting, stop := context.WithCancel(ctx)
	reported := make(chan struct{})
	go func() {
		defer close(reported)
		b.reportBoard(reporting, report)
	}()
	defer func() {
		stop()
		<-reported
	}()
	err := b.waitReady(ctx, b.cfg.Agent.Process("kube-apiserver"), "kubeconfig/"+strings.TrimPrefix(b.cfg.Paths.Admin, b.cfg.Paths.Root), "cert/join-ca")
	if err != nil {
		return initserver.Result{}, err
	}
	ca, err := readCert(b.cfg.Paths.JoinCA)
	if err != nil {
		return initserver.Result{}, err
	}
	admin, err := os.ReadFile(b.cfg.Paths.Admin)
	if err != nil {
		return initserver.Result{}, err
	}
	name, _ := b.cfg.Agent.Installed()
	return initserver.Result{Cluster: pin.OfCertificate(ca).ClusterID(), Node: name, Kubeconfig: admin}, nil
}

// waitReady waits until all these items are on the board and ready. A missing item is not ready: an agent that has just restarted
// has not announced its plan yet.
func (b bootstrapNode) waitReady(ctx context.Context, refs ...string) error {
	changes := b.cfg.Board.Subscribe()
	defer changes.End()
	for {
		all, _ := b.cfg.Board.All()
		ready := 0
		for _, s := range all {
			if s.Phase == reconcile.Ready && slices.Contains(refs, s.Ref) {
				ready++
			}
		}
		if ready == len(refs) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changes.C:
			changes.Take()
		}
	}
}

// reportBoard reports all changes of the board until ctx ends.
func (b bootstrapNode) reportBoard(ctx context.Context, report func(initserver.Event)) {
	changes := b.cfg.Board.Subscribe()
	defer changes.End()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changes.C:
			for _, s := range changes.Take() {
				text := s.What
				switch {
				case s.Phase == reconcile.Failing:
					text = s.Error
				case s.Phase == reconcile.Doing && s.Error != "":
					text += " (retry, last error: " + s.Error + ")"
				}
				report(initserver.Event{Item: s.Ref, ItemPhase: string(s.Phase), Text: text})
			}
		}
	}
}
