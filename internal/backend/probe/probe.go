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
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/slipway-project/slipway/internal/core/plan"
	"github.com/slipway-project/slipway/internal/sleep"
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

// The pace of asking: quick while a start is likely to end soon, calm when it has been long in coming.
const (
	firstPause = 20 * time.Millisecond
	pauseStep  = 2 * time.Millisecond
	busyPause  = 50 * time.Millisecond
	calmPause  = 250 * time.Millisecond
	calmAfter  = 30 * time.Second
)

// Await asks until the answer is yes, and calls waiting each time the reason changes. It returns an error only when ctx ends.
func (p *Prober) Await(ctx context.Context, pr plan.Probe, waiting func(reason string)) error {
	return Until(ctx, func(ctx context.Context) error {
		asked := time.Now()
		err := p.Ask(ctx, pr)
		if err != nil && (pr.Kind == plan.ProbeExec || pr.Kind == plan.ProbeTask) {
			_ = sleep.For(ctx, min(2*time.Since(asked), time.Second)) // a command costs CPU time that what is being waited for needs
		}
		return err
	}, waiting)
}

// Until calls ask, at 20 to 50 ms intervals in the beginning, until it returns nil or ctx ends.
func Until(ctx context.Context, ask func(context.Context) error, waiting func(reason string)) error {
	begin, pause, last := time.Now(), firstPause, ""
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		}
		err := ask(ctx)
		if err == nil {
			return nil
		}
		if reason := err.Error(); reason != last && ctx.Err() == nil {
			last = reason
			waiting(reason)
		}
		timer.Reset(pause)
		if pause = min(pause+pauseStep, busyPause); time.Since(begin) > calmAfter {
			pause = calmPause
		}
	}
}

// credentials are the files that a connection is made with. Probes that share them share connections.
type credentials struct{ ca, cert, key string }

func (p *Prober) askHTTP(ctx context.Context, pr plan.Probe) error {
	ctx, cancel := context.WithTimeout(ctx, netTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, pr.URL, nil)
	if err != nil {
		return err
	}
	resp, err := p.client(credentials{pr.CA, pr.Cert, pr.Key}).Do(req)
	if err != nil {
		return brief(err)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return brief(err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("answers %d: %s", resp.StatusCode, short(complaint(string(body))))
	}
	if !strings.Contains(string(body), pr.Contains) {
		return fmt.Errorf("answers %q without %q", short(string(body)), pr.Contains)
	}
	return nil
}

// complaint picks from a health report in Kubernetes' form ("[+]ping ok", "[-]etcd failed: …") the checks that fail.
func complaint(body string) string {
	var failing []string
	for line := range strings.Lines(body) {
		if check, ok := strings.CutPrefix(line, "[-]"); ok {
			check, _, _ = strings.Cut(strings.TrimSpace(check), ": reason withheld")
			failing = append(failing, check)
		}
	}
	if len(failing) == 0 {
		return body
	}
	return strings.Join(failing, ", ")
}

func (p *Prober) client(c credentials) *http.Client {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.clients[c] == nil {
		p.clients[c] = &http.Client{
			Transport: &http.Transport{
				DialTLSContext:         c.dial,
				MaxIdleConnsPerHost:    4,
				IdleConnTimeout:        30 * time.Second,
				MaxResponseHeaderBytes: maxAnswer,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	return p.clients[c]
}

// dial reads the files anew for each connection: certificates are renewed while the agent runs.
func (c credentials) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.ca != "" {
		pem, err := os.ReadFile(c.ca)
		if err != nil {
			return nil, fmt.Errorf("read CA: %w", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read CA %s: it holds no certificate", c.ca)
		}
	}
	if c.cert != "" {
		pair, err := tls.LoadX509KeyPair(c.cert, c.key)
		if err != nil {
			return nil, fmt.Errorf("read client certificate: %w", err)
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	return (&tls.Dialer{Config: conf}).DialContext(ctx, network, address)
}

// askExec runs the command in a process group of its own, so that nothing of it outlives the attempt.
func askExec(ctx context.Context, pr plan.Probe) error {
	if len(pr.Args) == 0 {
		return errors.New("the probe names no command")
	}
	limit, cancel := context.WithTimeout(ctx, execTimeout)
	defer cancel()
	var out tail
	cmd := exec.CommandContext(limit, pr.Args[0], pr.Args[1:]...)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 500 * time.Millisecond // for a grandchild that keeps the pipe open
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case limit.Err() != nil:
		return fmt.Errorf("no end within %s", execTimeout)
	case errors.As(err, &exit):
		return fmt.Errorf("%s: %s", exit.ProcessState, short(out.lastLine()))
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%s does not exist", pr.Args[0])
	case err != nil:
		return err
	case !strings.Contains(string(out), pr.Contains):
		return fmt.Errorf("prints %q without %q", short(out.lastLine()), pr.Contains)
	}
	return nil
}

// tail keeps the last maxAnswer bytes written to it.
type tail []byte

func (t *tail) Write(p []byte) (int, error) {
	*t = append(*t, p...)
	if over := len(*t) - maxAnswer; over > 0 {
		*t = append((*t)[:0], (*t)[over:]...)
	}
	return len(p), nil
}

func (t tail) lastLine() string {
	s := strings.TrimSpace(string(t))
	return s[strings.LastIndexByte(s, '\n')+1:]
}
