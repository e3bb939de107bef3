// SPDX-License-Identifier: Apache-2.0

// Package initserver answers the operator who wants to make a cluster of a machine that belongs to nobody: it takes one request,
// keeps it, carries it out however often the caller or the agent goes away meanwhile, and gives everybody with the secret the
// same answer.
//
// It never plans, never knows what a cluster is made of (that is the [Machine]), never answers a stranger, and never undoes a
// committed machine. Read [Server] and [Machine] first.
//
//	s, err := initserver.New(initserver.Config{Lock: l, Machine: m, SecretFile: …, RequestFile: …, Certificate: …, Log: log})
//	err = s.Run(ctx, listener) // until ctx ends, until a join has the machine, or until the answer has been there for an hour
package initserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/rpc"
)

// Config is what a server needs.
type Config struct {
	Lock        journal // a *lock.Lock
	Machine     Machine
	Slipway     string                           // version of this program
	SecretFile  string                           // what NewSecret gave for it
	RequestFile string                           // the request and its answer, mode 0600
	Certificate func() (*tls.Certificate, error) // of the machine's key, which callers have pinned
	Log         *slog.Logger                     // it never sees a secret
	Audit       func(rpc.Refused)                // optional: hears of every refused call and connection; must not block
	Limits      rpc.Limits                       // optional
	Deadline    time.Duration                    // optional: from claim to commit, for each start of the agent; 15 minutes
	Linger      time.Duration                    // optional: how long the answer can be fetched after the commit; an hour
	Pause       func(try int) time.Duration      // optional: between tries to clean up; 0.1 s, then twice as long up to 30 s
	Pass        func(step string)                // optional: tests: before and after each thing that a crash may divide
}

// journal is the node lock as the server uses it. An error that is a lock.ErrInDoubt leaves the caller not knowing; after any other
// error nothing has changed.
type journal interface {
	State() lock.State
	Wait(ctx context.Context, wanted func(lock.State) bool) (lock.State, error)
	Claim(by lock.By, id string) error
	Commit(id, cluster, node string) error
	Release(id string) error
}

var _ journal = (*lock.Lock)(nil)

// Machine is what the server works on. All its methods end when ctx does, and no two of them run at once except Facts.
type Machine interface {
	// Facts is called for every caller that asks, from any goroutine.
	Facts() machine.Facts
	// Install writes what the ticket brings and begins with its plan. It is called again, with the same ticket, after the agent has
	// been started anew.
	Install(ctx context.Context, t plan.Ticket) error
	// Established blocks until the cluster stands. It may report how things get on, from any goroutine, until it returns.
	Established(ctx context.Context, report func(Event)) (Result, error)
	// Wipe takes away all that Install and what it began have made. It is called until it returns nil, also when nothing is there.
	Wipe(ctx context.Context) error
}

// Result is the cluster that has come to be.
type Result struct {
	Cluster    string `json:"cluster"`
	Node       string `json:"node"`
	Kubeconfig []byte `json:"kubeconfig"` // the administrator's: a secret
}

// Server serves one machine. Draw of a request's life, with what is on the disk in brackets:
//
//	Init ─► [request] ─► [lock: claimed] ─► Install ─► Established ─► [answer] ─► [lock: committed]
//	                                └───────────┴── failed or too late ──┴──► [why] ─► Wipe ─► [lock: free]
//
// Wherever the agent dies, the next one goes on from what is in brackets.
type Server struct {
	cfg   Config
	guard *guard
	begun chan *request     // at most one: only one can hold the claim
	pass  func(step string) // never nil

	thanks  sync.Once
	thanked chan struct{} // closed when the caller has the answer

	mu     sync.Mutex // guards the fields below, and that persisting and claiming are one thing
	req    *request   // the one request that this machine knows; nil: none
	closed bool
}

const (
	defaultDeadline = 15 * time.Minute
	defaultLinger   = time.Hour
)

// New reads the secret and the request that was kept. Without a good secret there is no server, except on a machine that is
// claimed by init already: its request goes on, and nobody is let in.
func New(cfg Config) (*Server, error) {
	if cfg.Deadline == 0 {
		cfg.Deadline = defaultDeadline
	}
	if cfg.Linger == 0 {
		cfg.Linger = defaultLinger
	}
	if cfg.Pause == nil {
		cfg.Pause = pause
	}
	s := &Server{cfg: cfg, begun: make(chan *request, 1), pass: cfg.Pass, thanked: make(chan struct{})}
	if s.pass == nil {
		s.pass = func(string) {}
	}
	state := cfg.Lock.State()
	hash, err := readSecret(cfg.SecretFile)
	if err != nil && (state.Phase != lock.Claimed || state.By != lock.Init) {
		return nil, err
	}
	if err != nil {
		cfg.Log.Error("the request goes on, but nobody can ask for it", "error", err)
	}
	s.guard = newGuard(hash, err == nil)
	if s.req, err = s.recall(state); err != nil {
		return nil, err
	}
	return s, nil
}

// Run serves until ctx ends, and goes on with the request that was kept. It returns nil when a join has the machine, and when
// the answer has been there long enough; secret and answer are then gone from the disk. When it returns, the listener is closed,
// and nothing that it began runs on.
func (s *Server) Run(ctx context.Context, ln net.Listener) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var work sync.WaitGroup
	work.Go(func() { stop(s.serve(ctx, ln)) })
	work.Go(func() { stop(s.work(ctx)) })
	work.Go(func() { stop(s.ended(ctx)) })
	work.Wait()
	s.mu.Lock()
	s.closed = true // a call that is still on its way begins nothing any more
	s.mu.Unlock()
	if err := context.Cause(ctx); !errors.Is(err, errOver) {
		return err
	}
	return nil
}

// errOver ends a server that is not needed any longer.
var errOver = errors.New("this machine is spoken for")

// ended waits for the reasons to stop serving that the lock knows.
func (s *Server) ended(ctx context.Context) error {
	state, err := s.cfg.Lock.Wait(ctx, func(l lock.State) bool {
		return l.Phase == lock.Committed || (l.Phase == lock.Claimed && l.By == lock.Join)
	})
	if err != nil {
		return err
	}
	if state.By == lock.Join {
		return fmt.Errorf("%w: %s", errOver, state)
	}
	if err := s.linger(ctx); err != nil {
		return err
	}
	if err := Forget(s.cfg.SecretFile, s.cfg.RequestFile); err != nil {
		return err
	}
	return fmt.Errorf("%w: its caller has the answer, or has left it here for %s", errOver, s.cfg.Linger)
}

// linger keeps the answer until the caller has it, or for long enough.
func (s *Server) linger(ctx context.Context) error {
	limit := time.NewTimer(s.cfg.Linger)
	defer limit.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-limit.C:
	case <-s.thanked:
	}
	return nil
}
