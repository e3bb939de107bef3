// SPDX-License-Identifier: Apache-2.0

package sshhost

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/slipway-project/slipway/internal/sleep"
)

// Host is one machine. It is safe for concurrent use.
type Host struct {
	Target
	all  *Hosts
	turn chan struct{} // held while a connection is made

	mu     sync.Mutex // guards the fields below
	client *ssh.Client
	pause  time.Duration // before the next try, after one that has failed
}

const (
	firstPause   = 200 * time.Millisecond
	longestPause = 5 * time.Second
	aliveEvery   = 5 * time.Second
)

// Connect opens the connection, unless it is open.
func (h *Host) Connect(ctx context.Context) error {
	_, err := h.connected(ctx)
	return err
}

func (h *Host) connected(ctx context.Context) (*ssh.Client, error) {
	if c := h.live(); c != nil {
		return c, nil
	}
	select {
	case h.turn <- struct{}{}:
		defer func() { <-h.turn }()
	case <-ctx.Done():
		return nil, fmt.Errorf("connect to %s: %w", h.Name, context.Cause(ctx))
	}
	if c := h.live(); c != nil {
		return c, nil
	}
	if err := h.all.closed(); err != nil {
		return nil, err
	}
	if err := sleep.For(ctx, h.pause); err != nil { // only the holder of the turn reads and writes pause
		return nil, fmt.Errorf("connect to %s: %w", h.Name, err)
	}
	limited, cancel := context.WithTimeout(ctx, h.all.cfg.Patience)
	defer cancel()
	c, err := h.all.connect(limited, h.Target)
	if err != nil {
		h.pause = min(max(2*h.pause, firstPause), longestPause)
		if limited.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w (nothing after %s)", err, h.all.cfg.Patience)
		}
		return nil, fmt.Errorf("connect to %s: %w", h.Name, err)
	}
	h.pause = 0
	h.keep(c)
	return c, nil
}

func (h *Host) live() *ssh.Client {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.client
}

// keep uses a connection until it ends, or nothing is heard of the far side any more.
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

// watchOver ends a connection whose far side is silent: TCP alone would take many minutes to notice.
func watchOver(c *ssh.Client, ended <-chan struct{}) {
	tick := time.NewTicker(aliveEvery)
	defer tick.Stop()
	for {
		select {
		case <-ended:
			return
		case <-tick.C:
		}
		heard := make(chan struct{})
		go func() {
			_, _, _ = c.SendRequest("keepalive@openssh.com", true, nil) // any answer will do, a refusal too
			close(heard)
		}()
		select {
		case <-ended:
			return
		case <-heard:
		case <-time.After(3 * aliveEvery):
			_ = c.Close()
			return
		}
	}
}

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
	if trouble := k.trouble(); err != nil && trouble != nil && (ctx.Err() != nil || errors.Is(err, errNoKeyAccepted)) {
		err = fmt.Errorf("%w; %w", err, trouble)
	}
	return client, err
}

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
		case errors.As(err, &other): // the server may have the pinned key too, of another type
			refused = err
		case !errors.As(err, &none):
			return nil, err
		case refused == nil:
			refused = fmt.Errorf("it has no host key of a type that it must have: somebody may be in between, or it was made anew (ssh-keygen -R %s): %w", t.Host, err)
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
		return nil, plainLogin(err, t)
	}
	return ssh.NewClient(c, channels, requests), nil
}
