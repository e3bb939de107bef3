// SPDX-License-Identifier: Apache-2.0

package balancer

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"syscall"
	"time"
)

// serverName is in the certificate of every API server, and in no kubelet's certificate from the same CA.
const serverName = "kubernetes"

const request = "GET /readyz HTTP/1.1\r\nHost: kubernetes\r\nUser-Agent: slipway-api-balancer\r\n\r\n"

// watch probes a server until ctx ends. A probe that times out is repeated once on a new connection. After
// any other failure it waits for the next interval.
func (p *pool) watch(ctx context.Context, s *server) {
	var a prober
	defer a.close()
	tick := time.NewTicker(p.timing.interval)
	defer tick.Stop()
	for failures := 0; ; {
		limit := p.timing.timeout
		if failures == 1 {
			limit = p.timing.retry
		}
		err := a.probe(ctx, p, s.addr, limit)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			failures = 0
			p.set(s, ready, "")
		case errors.Is(err, syscall.ECONNREFUSED):
			failures = 2
			p.set(s, unreachable, "connection refused")
		default:
			if failures++; failures >= 2 {
				p.set(s, unreachable, err.Error())
			}
			if failures == 1 && errors.Is(err, os.ErrDeadlineExceeded) {
				continue
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// prober probes the readiness of one server on a connection that it keeps while probes succeed.
type prober struct {
	conn *tls.Conn
	in   *bufio.Reader
}

// close drops the kept connection, if any.
func (a *prober) close() {
	if a.conn != nil {
		_ = a.conn.NetConn().Close() // without TLS close_notify, which could block
		a.conn, a.in = nil, nil
	}
}

// probe sends one request. If a kept connection turns out to be closed, it tries a new one at once within the
// same limit: this distinguishes a failed server from a restarted one.
func (a *prober) probe(ctx context.Context, p *pool, addr string, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	kept := a.conn != nil
	err := a.once(ctx, p, addr)
	if err != nil {
		a.close()
	}
	if err != nil && kept && !errors.Is(err, errNotReady) && ctx.Err() == nil {
		if err = a.once(ctx, p, addr); err != nil {
			a.close()
		}
	}
	if err != nil && ctx.Err() != nil && !errors.Is(err, errNotReady) {
		return fmt.Errorf("no answer for %s: %w", limit, os.ErrDeadlineExceeded)
	}
	return err
}

// errNotReady reports that the server answers, but is not ready.
var errNotReady = errors.New("not ready")

// connect opens a TLS connection and verifies the server's certificate.
func (a *prober) connect(ctx context.Context, p *pool, addr string) error {
	raw, err := p.c.Dial(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	conf, err := p.trust.config()
	if err != nil {
		return errors.Join(err, raw.Close())
	}
	conn := tls.Client(raw, conf)
	if err := conn.HandshakeContext(ctx); err != nil {
		return errors.Join(fmt.Errorf("TLS handshake: %w", err), raw.Close())
	}
	a.conn, a.in = conn, bufio.NewReaderSize(conn, 1024)
	return nil
}

// once sends a request on the kept connection or on a new one.
func (a *prober) once(ctx context.Context, p *pool, addr string) error {
	if a.conn == nil {
		if err := a.connect(ctx, p, addr); err != nil {
			return err
		}
	}
	conn := a.conn
	_ = conn.SetDeadline(time.Time{})
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	if _, err := io.WriteString(conn, request); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	resp, err := http.ReadResponse(a.in, nil)
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	if resp.Close || n == maxAnswer {
		a.close()
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%w: status %d", errNotReady, resp.StatusCode)
	}
	return nil
}

const maxAnswer = 64 << 10

// trust reads the cluster CA for each connection, so that the file may be created later.
type trust struct{ file string }

// config is the TLS configuration for one connection.
func (t *trust) config() (*tls.Config, error) {
	pem, err := os.ReadFile(t.file)
	if err != nil {
		return nil, fmt.Errorf("read cluster CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("read cluster CA %s: it contains no certificate", t.file)
	}
	return &tls.Config{RootCAs: pool, ServerName: serverName, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}, nil
}
