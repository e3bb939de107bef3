// SPDX-License-Identifier: Apache-2.0

package enrol

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/wait"
	"github.com/slipway-project/slipway/internal/node/initserver"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/reconcile"
	"github.com/slipway-project/slipway/internal/rpc"
	"github.com/slipway-project/slipway/internal/sleep"
)

// initialise serves the init service, if the machine has an init secret. It lives a while longer than the machine is free: whoever
// lost the answer may ask again.
func (e *Enrolment) initialise(ctx context.Context) error {
	now, wanted := e.wanted(ctx)
	if !wanted {
		return nil
	}
	s, err := initserver.New(initserver.Config{
		Lock: e.cfg.Lock, Machine: founder{e}, Slipway: e.cfg.Slipway, SecretFile: e.cfg.Paths.Secret, RequestFile: e.cfg.Paths.Request, Log: e.cfg.Log,
		Pass:        func(step string) { e.cfg.Pass("init " + step) },
		Certificate: func() (*tls.Certificate, error) { return rpc.SelfSigned(e.cfg.Key, "slipway machine", e.cfg.Now()) },
	})
	if err != nil {
		e.cfg.Log.Error("no init service", "error", err)
		if now.Phase == lock.Claimed && now.By == lock.Init { // nobody else goes on with it
			e.say(reconcile.Status{
				Ref: itemLock, Phase: reconcile.Failing, Error: err.Error(), For: wait.For{Since: now.Since, Who: "the slipway that began it, or else you: make the machine anew"},
			})
		}
		return nil
	}
	ln, err := e.cfg.Listen(ctx)
	if err != nil {
		return fmt.Errorf("listen for an initialiser: %w", err)
	}
	return s.Run(ctx, ln)
}

// lookForSecret is for a person who makes an init secret on a machine that runs.
const lookForSecret = time.Second

// wanted waits until somebody may initialise the machine; false: it belongs to a cluster, or ctx has ended.
func (e *Enrolment) wanted(ctx context.Context) (lock.State, bool) {
	for {
		now := e.cfg.Lock.State()
		if now.Phase == lock.Claimed && now.By == lock.Init {
			return now, true
		}
		if _, err := os.Stat(e.cfg.Paths.Secret); !errors.Is(err, fs.ErrNotExist) {
			return now, true // also one of a machine that is committed: its answer may still be asked for
		}
		if now.Phase == lock.Committed || sleep.For(ctx, lookForSecret) != nil {
			return now, false
		}
	}
}

// founder is the machine as the init service works on it.
type founder struct{ *Enrolment }

// Facts are what the machine found out about itself.
func (f founder) Facts() machine.Facts { return f.cfg.Facts }

// Install begins with the ticket's plan.
func (f founder) Install(ctx context.Context, t plan.Ticket) error {
	f.unsay(itemLock)
	return f.cfg.Agent.Install(ctx, t, nil, nil)
}

// Wipe takes away what Install and its plan have made; the init service releases the lock itself.
func (f founder) Wipe(ctx context.Context) error {
	return f.cfg.Agent.Wipe(ctx, func() error { return nil })
}

// Established waits until the API server is ready, and reports how everything gets on.
func (f founder) Established(ctx context.Context, report func(initserver.Event)) (initserver.Result, error) {
	telling, stop := context.WithCancel(ctx)
	told := make(chan struct{})
	go func() {
		defer close(told)
		f.tell(telling, report)
	}()
	defer func() {
		stop()
		<-told
	}()
	err := f.stands(ctx, f.cfg.Agent.Process("kube-apiserver"), "kubeconfig/"+strings.TrimPrefix(f.cfg.Paths.Admin, f.cfg.Paths.Root), "cert/join-ca")
	if err != nil {
		return initserver.Result{}, err
	}
	ca, err := readCert(f.cfg.Paths.JoinCA)
	if err != nil {
		return initserver.Result{}, err
	}
	admin, err := os.ReadFile(f.cfg.Paths.Admin)
	if err != nil {
		return initserver.Result{}, err
	}
	name, _ := f.cfg.Agent.Installed()
	return initserver.Result{Cluster: pin.OfCertificate(ca).ClusterID(), Node: name, Kubeconfig: admin}, nil
}

// stands waits until the items are ready. What is not on the board is not ready either: an agent that has just begun anew has not
// announced its plan yet.
func (f founder) stands(ctx context.Context, refs ...string) error {
	changes := f.cfg.Board.Subscribe()
	defer changes.End()
	for {
		all, _ := f.cfg.Board.All()
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

// tell passes on what happens on the board.
func (f founder) tell(ctx context.Context, report func(initserver.Event)) {
	changes := f.cfg.Board.Subscribe()
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
					text += " again; last: " + s.Error
				}
				report(initserver.Event{Item: s.Ref, ItemPhase: string(s.Phase), Text: text})
			}
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
