// SPDX-License-Identifier: Apache-2.0

// Package initserver creates a cluster on a free machine at an operator's request. It accepts one request, stores it, and carries it
// out even if the client disconnects or the agent restarts. Every client with the init secret can fetch the result.
//
// It does not plan and does not know what a cluster consists of: that is the [Machine]'s part. It never answers a client without the
// secret, and never undoes a committed machine. Read [Server] and [Machine] first.
//
//	s, err := initserver.New(initserver.Config{Lock: l, Machine: m, SecretFile: …, RequestFile: …, Certificate: …, Log: log})
//	err = s.Run(ctx, listener) // until ctx ends, a join has claimed the machine, or the result was fetched
package initserver

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base32"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/core/strictjson"
	"github.com/slipway-project/slipway/internal/durable"
	"github.com/slipway-project/slipway/internal/node/lock"
	"github.com/slipway-project/slipway/internal/rpc"
)

// Config lists the dependencies of a Server.
type Config struct {
	Lock        journal // a *lock.Lock
	Machine     Machine
	Slipway     string                           // version of this program
	SecretFile  string                           // hash of the init secret; see NewSecret
	RequestFile string                           // the request and its result, mode 0600
	Certificate func() (*tls.Certificate, error) // for the machine's key, which clients have pinned
	Log         *slog.Logger                     // secrets are never logged
	Audit       func(rpc.Refused)                // optional: called for every refused call and connection; must not block
	Limits      rpc.Limits                       // optional
	Deadline    time.Duration                    // optional: limit from claim to commit, for each start of the agent; default 15 minutes
	Linger      time.Duration                    // optional: how long the result is available after the commit; default 1 hour
	Pause       func(try int) time.Duration      // optional: delay before a retry; default 0.1 s, doubled at each try, at most 30 s
	Pass        func(step string)                // optional: called between any two actions that a crash may separate
}

// journal is the node lock as the server uses it. After lock.ErrInDoubt, a step may or may not have happened; after any other error,
// nothing has changed.
type journal interface {
	State() lock.State
	Wait(ctx context.Context, wanted func(lock.State) bool) (lock.State, error)
	Claim(by lock.By, id string) error
	Commit(id, cluster, node string) error
	Release(id string) error
}

var _ journal = (*lock.Lock)(nil)

// Machine is the machine that the server works on. All methods return when ctx ends. Facts may be called at any time from any
// goroutine; the others are called one at a time.
type Machine interface {
	Facts() machine.Facts
	// Install writes the ticket's files and starts its plan. After a restart of the agent it is called again with the same ticket.
	Install(ctx context.Context, t plan.Ticket) error
	// Established blocks until the cluster is ready. Until it returns, it may report progress from any goroutine.
	Established(ctx context.Context, report func(Event)) (Result, error)
	// Wipe removes everything that Install and the plan have created. It is called until it returns nil, even if there is nothing
	// to remove.
	Wipe(ctx context.Context) error
}

// Result describes the new cluster.
type Result struct {
	Cluster    string `json:"cluster"`
	Node       string `json:"node"`
	Kubeconfig []byte `json:"kubeconfig"` // the administrator's: a secret
}

// Server serves the init requests of one machine. The states of a request, with the content of the disk in brackets:
//
//	Init ─► [request] ─► [lock: claimed] ─► Install ─► Established ─► [result] ─► [lock: committed]
//	                                └───────────┴── error or deadline ───┴──► [error] ─► Wipe ─► [lock: free]
//
// If the agent dies, the next one continues from the state in brackets.
type Server struct {
	cfg     Config
	guard   *guard
	claimed chan *request     // at most one: only one request can hold the claim
	pass    func(step string) // never nil

	fetchedOnce sync.Once
	fetched     chan struct{} // closed when the client has the result

	mu     sync.Mutex // guards the fields below, and makes storing and claiming one action
	req    *request   // the last request of this machine, or nil
	closed bool
}

const (
	defaultDeadline = 15 * time.Minute
	defaultLinger   = time.Hour
)

// New loads the secret and the stored request. Without a valid secret it returns an error. The exception is a machine that is
// claimed by an init: its request is continued, but all clients are refused.
func New(cfg Config) (*Server, error) {
	if cfg.Deadline == 0 {
		cfg.Deadline = defaultDeadline
	}
	if cfg.Linger == 0 {
		cfg.Linger = defaultLinger
	}
	if cfg.Pause == nil {
		cfg.Pause = func(try int) time.Duration { return min(30*time.Second, 100*time.Millisecond<<min(try, 10)) }
	}
	s := &Server{cfg: cfg, claimed: make(chan *request, 1), pass: cfg.Pass, fetched: make(chan struct{})}
	if s.pass == nil {
		s.pass = func(string) {}
	}
	state := cfg.Lock.State()
	hash, err := readSecret(cfg.SecretFile)
	if err != nil && (state.Phase != lock.Claimed || state.By != lock.Init) {
		return nil, err
	}
	if err != nil {
		cfg.Log.Error("the init request continues, but clients are refused", "error", err)
	}
	s.guard = newGuard(hash, err == nil)
	if s.req, err = s.loadRequest(state); err != nil {
		return nil, err
	}
	return s, nil
}

// Run serves until ctx ends, and continues a stored request. It returns nil when a join has claimed the machine, and when the result
// was fetched or has expired; then the secret and the result are no longer on the disk. When it returns, the listener is closed, and
// all its goroutines have ended.
func (s *Server) Run(ctx context.Context, ln net.Listener) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var work sync.WaitGroup
	work.Go(func() { stop(s.serve(ctx, ln)) })
	work.Go(func() { stop(s.work(ctx)) })
	work.Go(func() { stop(s.waitForEnd(ctx)) })
	work.Wait()
	s.mu.Lock()
	s.closed = true // a late call must not claim the machine
	s.mu.Unlock()
	if err := context.Cause(ctx); !errors.Is(err, errDone) {
		return err
	}
	return nil
}

// errDone ends a server that is no longer needed.
var errDone = errors.New("the init service is no longer needed")

// waitForEnd waits for a join to claim the machine, or for the commit and the end of the linger time.
func (s *Server) waitForEnd(ctx context.Context) error {
	state, err := s.cfg.Lock.Wait(ctx, func(l lock.State) bool {
		return l.Phase == lock.Committed || (l.Phase == lock.Claimed && l.By == lock.Join)
	})
	if err != nil {
		return err
	}
	if state.By == lock.Join {
		return fmt.Errorf("%w: this machine is %s", errDone, state)
	}
	limit := time.NewTimer(s.cfg.Linger)
	defer limit.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-limit.C:
	case <-s.fetched:
	}
	if err := Forget(s.cfg.SecretFile, s.cfg.RequestFile); err != nil {
		return err
	}
	return fmt.Errorf("%w: the result was fetched or has expired", errDone)
}

// secretFile is the content of Config.SecretFile.
type secretFile struct {
	Hash string `json:"hash"` // SHA-256, hex
}

const secretBytes = 20

// NewSecret creates a one-time secret for a client and the content of the machine's secret file. A plain SHA-256 protects the
// secret's 160 random bits; a slow hash would only be needed for passwords.
func NewSecret() (secret string, file []byte) {
	raw := make([]byte, secretBytes)
	_, _ = rand.Read(raw) // never fails: the program ends instead
	secret = strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(raw))
	return secret, SecretFile(secret)
}

// SecretFile returns the content of the machine's secret file for this secret.
func SecretFile(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return fmt.Appendf(nil, "{\"hash\": %q}\n", hex.EncodeToString(sum[:]))
}

// readSecret returns the hash. Its errors say what to do and do not quote the file, which might contain the secret itself.
func readSecret(path string) (hash [sha256.Size]byte, err error) {
	const hint = "the init service is not started (write a new secret file and restart the agent)"
	data, err := os.ReadFile(path)
	if err != nil {
		return hash, fmt.Errorf("read init secret: %w: %s", err, hint)
	}
	var f secretFile
	if err := strictjson.Decode(data, &f); err != nil {
		return hash, fmt.Errorf("read init secret: %s is not of the form {\"hash\": …}: %s", path, hint)
	}
	sum, err := hex.DecodeString(f.Hash)
	if err != nil || len(sum) != len(hash) || bytes.Equal(sum, make([]byte, len(hash))) {
		return hash, fmt.Errorf("read init secret: the hash in %s is not a SHA-256 in hex: %s", path, hint)
	}
	empty := sha256.Sum256(nil)
	if bytes.Equal(sum, empty[:]) {
		return hash, fmt.Errorf("read init secret: %s contains the hash of an empty secret: %s", path, hint)
	}
	copy(hash[:], sum)
	return hash, nil
}

// Forget removes the secret and the stored request with its result from a committed machine. Missing files are not an error.
func Forget(secretFile, requestFile string) error {
	for _, path := range []string{secretFile, requestFile, requestFile + ".prev"} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove init secret and result: %w", err)
		}
	}
	for _, path := range []string{secretFile, requestFile} {
		if err := durable.SyncDir(filepath.Dir(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove init secret and result: %w", err)
		}
	}
	return nil
}
