// SPDX-License-Identifier: Apache-2.0

// Package probe asks whether something is ready: a [plan.Probe] goes in, nil or the reason in few words comes out. It never
// changes what it asks, never logs, and never waits longer than one attempt may take.
//
// Read [Prober] first; [Prober.Await] asks until the answer is yes.
//
//	p := probe.New()
//	defer p.Close()
//	p.Ask(ctx, plan.Probe{Kind: plan.ProbeTCP, Address: "127.0.0.1:2379"}) // "connection refused"
package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/slipway-project/slipway/internal/core/plan"
)

const (
	netTimeout  = time.Second // a server that hangs must not stall the loop
	execTimeout = 5 * time.Second
	maxAnswer   = 64 << 10
	maxReason   = 160
)

// Prober asks probes and keeps their connections, so that asking again costs one request and no handshake. It is safe for
// concurrent use.
type Prober struct {
	// Task, if set, tells whether the work of a task of this agent is done. It must be set before the first question.
	Task func(ctx context.Context, args []string) error

	mu      sync.Mutex // guards the fields below
	clients map[credentials]*http.Client
}

// New is a Prober without connections.
func New() *Prober { return &Prober{clients: map[credentials]*http.Client{}} }

// Close drops the connections that are kept. A closed Prober may be used again.
func (p *Prober) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.clients {
		c.CloseIdleConnections()
	}
}

// Ask asks once. Nil means ready; an error is the reason why not.
func (p *Prober) Ask(ctx context.Context, pr plan.Probe) error {
	switch pr.Kind {
	case plan.ProbeNone:
		return nil
	case plan.ProbeHTTP:
		return p.askHTTP(ctx, pr)
	case plan.ProbeTCP:
		return askTCP(ctx, pr.Address)
	case plan.ProbeExec:
		return askExec(ctx, pr)
	case plan.ProbeFile:
		return askFile(pr.Path)
	case plan.ProbeTask:
		return p.askTask(ctx, pr)
	case plan.ProbeNotify:
		return errors.New("only the supervisor of the process hears READY=1")
	}
	return fmt.Errorf("unknown probe %q: this agent is older than the plan", pr.Kind)
}

func askTCP(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, netTimeout)
	defer cancel()
	network := "tcp"
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		network, address = "unix", path
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return brief(err)
	}
	_ = conn.Close() // it was opened to see that it can be
	return nil
}

func (p *Prober) askTask(ctx context.Context, pr plan.Probe) error {
	if p.Task == nil {
		return errors.New("this program has no tasks: only the agent of a node can say")
	}
	ctx, cancel := context.WithTimeout(ctx, execTimeout)
	defer cancel()
	return p.Task(ctx, pr.Args)
}

func askFile(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return errors.New("it does not exist")
	case err != nil:
		return err
	case info.Size() == 0:
		return errors.New("it is empty")
	}
	return nil
}

// brief drops from an error what the probe says anyway: method, address, system call.
func brief(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	if errors.Is(err, context.DeadlineExceeded) || os.IsTimeout(err) {
		return fmt.Errorf("no answer within %s", netTimeout)
	}
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err
	}
	var sys *os.SyscallError
	if errors.As(err, &sys) {
		err = sys.Err
	}
	return err
}

// short makes one line of limited length out of an answer.
func short(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > maxReason {
		s = strings.ToValidUTF8(s[:maxReason], "") + "…"
	}
	return s
}
