// SPDX-License-Identifier: Apache-2.0

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
	"os"
	"strings"
	"time"

	"github.com/slipway-project/slipway/internal/core/plan"
)

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
