// SPDX-License-Identifier: Apache-2.0

package sshhost

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/slipway-project/slipway/internal/sleep"
)

// Host is one machine. It is safe for concurrent use.
type Host struct {
	Target
	all        *Hosts
	connecting chan struct{} // semaphore that guards pause
	pause      time.Duration // before the next attempt, after a failed one

	mu     sync.Mutex // guards client
	client *ssh.Client
}

const (
	firstPause   = 200 * time.Millisecond
	longestPause = 5 * time.Second
	keepAlive    = 5 * time.Second
)

// Connect opens the connection, unless it is open.
func (h *Host) Connect(ctx context.Context) error {
	_, err := h.connected(ctx)
	return err
}

// connected returns the open connection, or opens one. Concurrent callers wait for one attempt; after a
// failed attempt, the next one is delayed with exponential backoff.
func (h *Host) connected(ctx context.Context) (*ssh.Client, error) {
	if c := h.live(); c != nil {
		return c, nil
	}
	select {
	case h.connecting <- struct{}{}:
		defer func() { <-h.connecting }()
	case <-ctx.Done():
		return nil, fmt.Errorf("connect to %s: %w", h.Name, context.Cause(ctx))
	}
	if c := h.live(); c != nil {
		return c, nil
	}
	if err := h.all.closed(); err != nil {
		return nil, err
	}
	if err := sleep.For(ctx, h.pause); err != nil {
		return nil, fmt.Errorf("connect to %s: %w", h.Name, err)
	}
	limited, cancel := context.WithTimeout(ctx, h.all.cfg.Timeout)
	defer cancel()
	c, err := h.all.connect(limited, h.Target)
	if err != nil {
		h.pause = min(max(2*h.pause, firstPause), longestPause)
		if limited.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w (timeout after %s)", err, h.all.cfg.Timeout)
		}
		return nil, fmt.Errorf("connect to %s: %w", h.Name, err)
	}
	h.pause = 0
	h.keep(c)
	return c, nil
}

// live is the open connection, nil if there is none.
func (h *Host) live() *ssh.Client {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.client
}

// keep makes c the host's connection until it ends or the keepalives fail.
func (h *Host) keep(c *ssh.Client) {
	h.mu.Lock()
	h.client = c
	h.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		_ = c.Wait()
		close(ended)
		h.mu.Lock()
		if h.client == c {
			h.client = nil
		}
		h.mu.Unlock()
	}()
	go watchOver(c, ended)
	if h.all.closed() != nil {
		h.drop()
	}
}

// watchOver closes a connection when keepalives get no answer: TCP alone would need many minutes to detect that.
func watchOver(c *ssh.Client, ended <-chan struct{}) {
	tick := time.NewTicker(keepAlive)
	defer tick.Stop()
	for {
		select {
		case <-ended:
			return
		case <-tick.C:
		}
		heard := make(chan struct{})
		go func() {
			_, _, _ = c.SendRequest("keepalive@openssh.com", true, nil) // any answer counts, including a refusal
			close(heard)
		}()
		select {
		case <-ended:
			return
		case <-heard:
		case <-time.After(3 * keepAlive):
			_ = c.Close()
			return
		}
	}
}

// drop closes the connection, if any.
func (h *Host) drop() {
	h.mu.Lock()
	c := h.client
	h.client = nil
	h.mu.Unlock()
	if c != nil {
		_ = c.Close()
	}
}

// connect logs in once.
func (s *Hosts) connect(ctx context.Context, t Target) (*ssh.Client, error) {
	k, err := s.auth(ctx, t)
	if err != nil {
		return nil, err
	}
	defer k.close()
	client, err := s.login(ctx, t, k.signers)
	if agentErr := k.agentErr(); err != nil && agentErr != nil && (ctx.Err() != nil || errors.Is(err, errNoKeyAccepted)) {
		err = fmt.Errorf("%w; %w", err, agentErr)
	}
	return client, err
}

// login tries the host key checks in order, each on a new connection.
func (s *Hosts) login(ctx context.Context, t Target, signers []ssh.Signer) (*ssh.Client, error) {
	auth := []ssh.AuthMethod{ssh.PublicKeys(signers...)}
	var refused error
	for _, check := range s.checks(t) {
		conn, err := s.reach(ctx, t)
		if err != nil {
			return nil, err
		}
		client, err := handshake(ctx, conn, t, auth, check)
		if err == nil {
			return client, nil
		}
		var other *PinError
		var none *ssh.AlgorithmNegotiationError
		switch {
		case errors.As(err, &other): // the server may also have the pinned key, of another type
			refused = err
		case !errors.As(err, &none):
			return nil, err
		case refused == nil:
			refused = fmt.Errorf("server has no host key of the expected type: this may be a man-in-the-middle attack; if the machine was reinstalled, remove the old key with ssh-keygen -R %s: %w", t.Host, err)
		}
	}
	return nil, refused
}

// reach opens a TCP connection, through the jump host if there is one.
func (s *Hosts) reach(ctx context.Context, t Target) (net.Conn, error) {
	if t.Jump.Host == "" {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", t.address())
	}
	through, err := s.At(t.through()).connected(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := through.DialContext(ctx, "tcp", t.address())
	if err != nil {
		return nil, fmt.Errorf("from the %s to %s: %w", t.through().Name, t.address(), err)
	}
	return conn, nil
}

// handshake logs in over conn. It closes conn on error, and when ctx ends.
func handshake(ctx context.Context, conn net.Conn, t Target, auth []ssh.AuthMethod, check hostKeyCheck) (*ssh.Client, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	c, channels, requests, err := ssh.NewClientConn(conn, t.address(), &ssh.ClientConfig{
		User: t.user(), Auth: auth, HostKeyCallback: check.call, HostKeyAlgorithms: check.algorithms, ClientVersion: "SSH-2.0-slipway",
	})
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = conn.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, explainLogin(err, t)
	}
	return ssh.NewClient(c, channels, requests), nil
}

// Dial connects to a unix socket on the machine. If the login user is root, sshd forwards the connection.
// Otherwise, and if sshd refuses to forward, it runs StreamCommand on the machine.
func (h *Host) Dial(ctx context.Context, socket string) (net.Conn, error) {
	client, err := h.connected(ctx)
	if err != nil {
		return nil, err
	}
	if h.user() == Root {
		far, err := client.DialContext(ctx, "unix", socket)
		if err == nil {
			return joined(far, far.Close), nil
		}
		var refused *ssh.OpenChannelError
		if !errors.As(err, &refused) || refused.Reason != ssh.Prohibited && refused.Reason != ssh.UnknownChannelType {
			return nil, fmt.Errorf("connect to %s of %s: %w", socket, h.Name, err)
		}
	}
	return h.stream(client, socket)
}

// StreamCommand is the hidden slipway command that connects its standard input and output to a unix socket.
const StreamCommand = "stream"

// stream runs StreamCommand on the machine, and returns its standard input and output as a connection.
func (h *Host) stream(client *ssh.Client, socket string) (net.Conn, error) {
	session, err := client.NewSession()
	if err != nil {
		return nil, fmt.Errorf("connect to %s of %s: %w", socket, h.Name, err)
	}
	in, err := session.StdinPipe()
	if err != nil {
		return nil, errors.Join(err, session.Close())
	}
	out, err := session.StdoutPipe()
	if err != nil {
		return nil, errors.Join(err, session.Close())
	}
	stderr := &tail{}
	session.Stderr = stderr
	line := h.commandLine(Command{Script: `exec "$1" "$2" "$3"`, Args: []string{h.all.cfg.Program, StreamCommand, socket}})
	if err := session.Start(line); err != nil {
		return nil, errors.Join(fmt.Errorf("connect to %s of %s: %w", socket, h.Name, err), session.Close())
	}
	hello := make([]byte, len(streamHello))
	if _, err := io.ReadFull(out, hello); err != nil || string(hello) != streamHello {
		_ = session.Close()
		_ = session.Wait() // so that stderr is complete
		return nil, fmt.Errorf("connect to %s of %s: %s", socket, h.Name, strings.TrimSpace(stderr.text()))
	}
	return joined(struct {
		io.Reader
		io.WriteCloser
	}{out, in}, session.Close), nil
}

// streamHello is the first output of StreamCommand, once it is connected.
const streamHello = "slipway-stream\n"

// Stream is the work of StreamCommand: it copies in to conn and conn to out until either side has ended.
func Stream(conn net.Conn, in io.Reader, out io.Writer) error {
	if _, err := io.WriteString(out, streamHello); err != nil {
		return err
	}
	ended := make(chan error, 2)
	go func() {
		_, err := io.Copy(conn, in)
		ended <- err
	}()
	go func() {
		_, err := io.Copy(out, conn)
		ended <- err
	}()
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// joined makes a net.Conn with deadlines from an SSH channel, which has none.
func joined(far io.ReadWriteCloser, end func() error) net.Conn {
	near, inner := net.Pipe()
	go func() {
		_, _ = io.Copy(inner, far)
		_ = inner.Close()
		_ = end()
	}()
	go func() {
		_, _ = io.Copy(far, inner)
		_ = inner.Close()
		_ = end()
	}()
	return near
}
