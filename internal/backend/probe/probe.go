// SPDX-License-Identifier: Apache-2.0

// Package probe runs readiness probes: a [plan.Probe] goes in, nil or a short reason comes out. It changes
// nothing, does not log, and never waits longer than one attempt may take.
//
// Read [Prober] first; [Prober.Await] repeats a probe until it succeeds.
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
	netTimeout  = time.Second // a hanging server must not block the loop
	execTimeout = 5 * time.Second
	maxAnswer   = 64 << 10
	maxReason   = 160
)

// Prober runs probes and keeps their connections, so that repeating one costs a request and no handshake.
// It is safe for concurrent use.
type Prober struct {
	// Task, if set, returns nil if the work of the agent's task is done, and otherwise the reason. It must
	// be set before the first probe.
	Task func(ctx context.Context, args []string) error

	mu      sync.Mutex // guards the fields below
	clients map[credentials]*http.Client
}

// New returns a Prober without connections.
func New() *Prober { return &Prober{clients: map[credentials]*http.Client{}} }

// Close closes idle connections. The Prober may be used again.
func (p *Prober) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.clients {
		c.CloseIdleConnections()
	}
}

// Ask runs the probe once. It returns nil if the probe succeeds, and otherwise the reason for the failure.
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
		return errors.New("only the supervisor of the process receives READY=1")
	}
	return fmt.Errorf("unknown probe %q: the agent is older than the plan", pr.Kind)
}

// askTCP connects once to host:port or unix:///path.
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
	_ = conn.Close() // only checks that a connection is possible
	return nil
}

func (p *Prober) askTask(ctx context.Context, pr plan.Probe) error {
	if p.Task == nil {
		return errors.New("tasks can only be checked by the agent of a node")
	}
	ctx, cancel := context.WithTimeout(ctx, execTimeout)
	defer cancel()
	return p.Task(ctx, pr.Args)
}

// askFile succeeds if the file exists and is not empty.
func askFile(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return errors.New("the file does not exist")
	case err != nil:
		return err
	case info.Size() == 0:
		return errors.New("the file is empty")
	}
	return nil
}

// brief removes the parts of an error that repeat the probe: method, address, system call.
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

// short returns s as one line of limited length.
func short(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > maxReason {
		s = strings.ToValidUTF8(s[:maxReason], "") + "…"
	}
	return s
}

// The intervals of Await: short at first, because most starts are quick, and longer after calmAfter.
const (
	firstPause = 20 * time.Millisecond
	pauseStep  = 2 * time.Millisecond
	busyPause  = 50 * time.Millisecond
	calmPause  = 250 * time.Millisecond
	calmAfter  = 30 * time.Second
)

// Await repeats the probe until it succeeds, and calls waiting each time the reason changes. It returns an
// error only if ctx ends.
func (p *Prober) Await(ctx context.Context, pr plan.Probe, waiting func(reason string)) error {
	return Until(ctx, func(ctx context.Context) error {
		asked := time.Now()
		err := p.Ask(ctx, pr)
		if err != nil && (pr.Kind == plan.ProbeExec || pr.Kind == plan.ProbeTask) {
			_ = sleep.For(ctx, min(2*time.Since(asked), time.Second)) // a command takes CPU time from the process that is starting
		}
		return err
	}, waiting)
}

// Until calls ask until it returns nil or ctx ends, at first every 20 to 50 ms, and calls waiting each
// time the error changes.
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

// credentials are the files of a TLS connection. Probes with the same credentials share connections.
type credentials struct{ ca, cert, key string }

// askHTTP succeeds if the server returns 200 and the body contains the wanted text. Redirects count as
// failures.
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
		return fmt.Errorf("returns %d: %s", resp.StatusCode, short(failingChecks(string(body))))
	}
	if !strings.Contains(string(body), pr.Contains) {
		return fmt.Errorf("returns %q without %q", short(string(body)), pr.Contains)
	}
	return nil
}

// failingChecks returns the failing checks of a health report in Kubernetes' format ("[+]ping ok",
// "[-]etcd failed: …"), or the whole body if it has another format.
func failingChecks(body string) string {
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

// client returns the client for these credentials, which keeps its connections.
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

// dial reads the credentials for each connection because certificates are renewed while the agent runs.
func (c credentials) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.ca != "" {
		pem, err := os.ReadFile(c.ca)
		if err != nil {
			return nil, fmt.Errorf("read CA: %w", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read CA %s: no certificate found", c.ca)
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

// askExec runs the command in its own process group, so that no child process outlives the attempt.
func askExec(ctx context.Context, pr plan.Probe) error {
	if len(pr.Args) == 0 {
		return errors.New("no command")
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
		return fmt.Errorf("not finished within %s", execTimeout)
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

// lastLine returns the last line that is not blank.
func (t tail) lastLine() string {
	s := strings.TrimSpace(string(t))
	return s[strings.LastIndexByte(s, '\n')+1:]
}
