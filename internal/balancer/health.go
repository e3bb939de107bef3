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

// serverName is a name that every API server's certificate carries, and no kubelet's of the same CA.
const serverName = "kubernetes"

const request = "GET /readyz HTTP/1.1\r\nHost: kubernetes\r\nUser-Agent: slipway-api-balancer\r\n\r\n"

// watch keeps asking one server, until ctx ends. A question that is not answered in time is asked once more on a new
// connection; an answer other than "ok" is asked again at the usual time.
func (p *pool) watch(ctx context.Context, s *server) {
	var a asker
	defer a.close()
	tick := time.NewTicker(p.pace.health)
	defer tick.Stop()
	for misses := 0; ; {
		limit := p.pace.late
		if misses == 1 {
			limit = p.pace.again
		}
		err := a.ask(ctx, p, s.addr, limit)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			misses = 0
			p.set(s, ready, "")
		case errors.Is(err, syscall.ECONNREFUSED):
			misses = 2
			p.set(s, out, "it refuses connections")
		default:
			if misses++; misses >= 2 {
				p.set(s, out, err.Error())
			}
			if misses == 1 && errors.Is(err, os.ErrDeadlineExceeded) {
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

// asker asks one server for its readiness on a connection that it keeps while all goes well.
type asker struct {
	conn *tls.Conn
	in   *bufio.Reader
}

func (a *asker) close() {
	if a.conn != nil {
		_ = a.conn.NetConn().Close() // no farewell: it could block
		a.conn, a.in = nil, nil
	}
}

// ask puts one question. When a kept connection turns out to be closed, a new one is tried at once within the same time:
// that is how the death of a server is told from its restart.
func (a *asker) ask(ctx context.Context, p *pool, addr string, limit time.Duration) error {
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

// errNotReady: it answers, and says no.
var errNotReady = errors.New("not ready")

func (a *asker) connect(ctx context.Context, p *pool, addr string) error {
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
		return errors.Join(fmt.Errorf("shake hands: %w", err), raw.Close())
	}
	a.conn, a.in = conn, bufio.NewReaderSize(conn, 1024)
	return nil
}

// once asks on the kept connection, or on a new one.
func (a *asker) once(ctx context.Context, p *pool, addr string) error {
	if a.conn == nil {
		if err := a.connect(ctx, p, addr); err != nil {
			return err
		}
	}
	conn := a.conn
	_ = conn.SetDeadline(time.Time{})
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	if _, err := io.WriteString(conn, request); err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	resp, err := http.ReadResponse(a.in, nil)
	if err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	if resp.Close || n == maxAnswer {
		a.close()
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%w: answers %d", errNotReady, resp.StatusCode)
	}
	return nil
}

const maxAnswer = 64 << 10

// trust reads the cluster's CA when a connection is made, so that it may come late.
type trust struct{ file string }

func (t *trust) config() (*tls.Config, error) {
	pem, err := os.ReadFile(t.file)
	if err != nil {
		return nil, fmt.Errorf("read cluster CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("read cluster CA %s: it holds no certificate", t.file)
	}
	return &tls.Config{RootCAs: pool, ServerName: serverName, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}, nil
}
