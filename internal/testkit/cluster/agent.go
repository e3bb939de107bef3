// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-project/slipway/internal/attest"
	attestkey "github.com/slipway-project/slipway/internal/attest/key"
	"github.com/slipway-project/slipway/internal/attest/token"
	"github.com/slipway-project/slipway/internal/control/rollout"
	coremachine "github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/pin"
	"github.com/slipway-project/slipway/internal/core/pki"
	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/node"
	"github.com/slipway-project/slipway/internal/node/enrol"
	"github.com/slipway-project/slipway/internal/node/joinclient"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/node/routes"
	"github.com/slipway-project/slipway/internal/reconcile"
)

// agent is one process of a machine's agent, assembled as in cmd/slipway.
type agent struct {
	m      *machine
	root   string
	ctx    context.Context //nolint:containedctx // ends with the process; many goroutines share it
	cancel context.CancelFunc
	dead   atomic.Bool
	gone   chan struct{} // closed when it dies
	done   chan struct{} // closed when all its goroutines have ended

	key     *ecdsa.PrivateKey
	pin     pin.Pin
	lock    *lock.Lock
	board   *reconcile.Board
	custody custody
	node    *node.Agent
	enrol   *enrol.Enrolment
	rollout *rollout.Manager
	mislaid atomic.Bool // the answer to the current write is to be lost

	joins atomic.Pointer[joinService]
	inits atomic.Pointer[listener]
}

// Files of a machine, relative to its root.
const (
	stateDir   = "/var/lib/slipway/state"
	lockFile   = stateDir + "/lock"
	keyFile    = stateDir + "/machine.key"
	planFile   = "/var/lib/slipway/plan/plan.json"
	permitFile = stateDir + "/etcd-permit"
	voterFile  = stateDir + "/etcd-voter"
	createFile = stateDir + "/create-permit"
	rosterFile = stateDir + "/roster.json"
	etcdData   = "/var/lib/etcd/member"
	etcdMark   = stateDir + "/etcd-created"
	pkiDir     = "/etc/kubernetes/pki"
	adminFile  = "/etc/kubernetes/admin.conf"
)

func newAgent(m *machine, root string) (*agent, error) {
	a := &agent{m: m, root: root, gone: make(chan struct{}), done: make(chan struct{}), board: reconcile.NewBoard()}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	a.custody = newCustody(a)
	for _, dir := range []string{stateDir, filepath.Dir(planFile)} {
		if err := os.MkdirAll(root+dir, 0o700); err != nil {
			return nil, err
		}
	}
	var err error
	if a.key, a.pin, err = machineKey(root + keyFile); err != nil {
		return nil, err
	}
	if a.lock, err = lock.Open(root + lockFile); err != nil {
		return nil, err
	}
	log := slog.New(slog.DiscardHandler)
	if verbose {
		log = slog.New(slog.NewTextHandler(noter{m}, &slog.HandlerOptions{Level: slog.LevelInfo}))
	}
	a.rollout = rollout.New(log, time.Now)
	facts := coremachine.Facts{Address: m.address}
	a.node, err = node.New(node.Config{
		Host: host{a}, Facts: facts, Key: a.pin, PlanFile: root + planFile, TraceFile: root + "/var/lib/slipway/plan/trace.json", Version: "sim", Log: log, Board: a.board, Root: root,
		Control: a.control, Rollout: a.rollout, Pass: a.pass,
	})
	if err != nil {
		return nil, err
	}
	a.enrol, err = enrol.New(enrol.Config{
		Lock: a.lock, Agent: a.node, Board: a.board, Facts: facts, Key: a.key, Custody: a.custody, Prover: prover, Slipway: "sim", Log: log,
		Network: network{a}, Random: m.w.intn, Pass: a.pass, Now: a.now,
		Paths: enrol.Paths{
			Key: root + keyFile, Secret: root + "/var/lib/slipway/init-secret.json", Request: root + stateDir + "/init-request", Target: root + stateDir + "/join-target",
			JoinCA: root + pkiDir + "/join-ca.crt", Roster: root + rosterFile, Admin: root + adminFile, Create: root + createFile, Permit: root + permitFile, Voter: root + voterFile, Root: root,
		},
	})
	return a, err
}

// network is the simulated network as an agent uses it. It implements enrol.Network.
type network struct{ a *agent }

func (n network) Listen(context.Context) (net.Listener, error) { return n.a.listen(), nil }
func (n network) Dialer(ca pin.Pin) joinclient.Dialer          { return n.a.dialer(ca) }
func (n network) Clock(pin.Pin) joinclient.Clock               { return n.a.askTime }
func (n network) HasAddress(at netip.Addr) bool                { return at == n.a.m.address }

func (n network) KeepRoutes(ctx context.Context, _ routes.Config) error {
	<-ctx.Done()
	return nil
}

// noter writes the agent's log to that of the run.
type noter struct{ m *machine }

func (n noter) Write(p []byte) (int, error) {
	n.m.w.note("%s: %s", n.m.name, p[:max(len(p)-1, 0)])
	return len(p), nil
}

// run runs the agent until it is killed or ends by itself.
func (a *agent) run() {
	group, ctx := errgroup.WithContext(a.ctx)
	group.Go(func() error { return a.node.Run(ctx, a.enrol) })
	group.Go(func() error { return a.enrol.Run(ctx) })
	group.Go(func() error { return host{a}.supervise(ctx) })
	err := group.Wait()
	a.cancel()
	a.m.ended(a, err)
	close(a.done)
}

// die ends the agent at once: what its goroutines still do has no effect.
func (a *agent) die() {
	if !a.dead.Swap(true) {
		close(a.gone)
		a.cancel()
	}
}

// errDead is the answer of the world to a dead agent.
var errDead = errors.New("this agent is dead")

func (a *agent) alive() error {
	if a.dead.Load() {
		return errDead
	}
	return nil
}

// pass is called between any two actions that a crash may separate.
func (a *agent) pass(name string) {
	if a.dead.Load() {
		return
	}
	a.m.w.pass(a, name)
}

func machineKey(path string) (*ecdsa.PrivateKey, pin.Pin, error) {
	der, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, "", err
		}
		if der, err = x509.MarshalECPrivateKey(key); err != nil {
			return nil, "", err
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, "", err
		}
		if err := durable.WriteFile(path, 0o600, der); err != nil {
			return nil, "", err
		}
	} else if err != nil {
		return nil, "", err
	}
	key, err := x509.ParseECPrivateKey(der)
	if err != nil {
		return nil, "", fmt.Errorf("read machine key: %w", err)
	}
	spki, err := x509.MarshalPKIXPublicKey(key.Public())
	return key, pin.Of(spki), err
}

// rebase prefixes the paths of a Want with a machine's root.
func rebase(root string, w pki.Want) pki.Want {
	for _, path := range []*string{&w.CertPath, &w.KeyPath, &w.SignerCert, &w.SignerKey, &w.Permit} {
		if *path != "" {
			*path = root + *path
		}
	}
	return w
}

// prover returns what cmd/slipway returns for a target.
func prover(t node.JoinTarget) attest.Prover {
	if t.Token != "" {
		return token.Prover{Text: t.Token}
	}
	return attestkey.Prover{}
}
