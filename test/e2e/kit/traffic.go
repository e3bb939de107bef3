// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// Poller asks a URL from within the machine's network again and again.
type Poller struct {
	stop func()
	done chan struct{}

	mu      sync.Mutex // guards the fields below
	answers int
	last    time.Time
	gap     time.Duration // the longest time without an answer
	err     error         // the last one
}

// Poll begins to ask, each time over a new connection.
func (c *Cluster) Poll(url string) *Poller {
	return c.poll(&http.Client{
		Transport: &http.Transport{DialContext: c.Dial, DisableKeepAlives: true},
		Timeout:   time.Second,
	}, url)
}

func (c *Cluster) poll(client *http.Client, url string) *Poller {
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.T.Context())) // parts of a test hand it on
	p := &Poller{stop: cancel, done: make(chan struct{}), last: time.Now()}
	go func() {
		defer close(p.done)
		defer client.CloseIdleConnections()
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				p.note(ask(ctx, client, url), time.Now())
			}
		}
	}()
	return p
}

func ask(ctx context.Context, client *http.Client, url string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	reply, err := client.Do(r)
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	_, err = io.Copy(io.Discard, reply.Body)
	if err == nil && reply.StatusCode != http.StatusOK {
		return fmt.Errorf("%s", reply.Status)
	}
	return err
}

func (p *Poller) note(err error, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gap = max(p.gap, now.Sub(p.last))
	if err != nil {
		p.err = err
		return
	}
	p.answers++
	p.last = now
}

// Gap is the longest time without an answer since the last Reset, and the last error in it.
func (p *Poller) Gap() (gap time.Duration, answers int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(p.gap, time.Since(p.last)), p.answers, p.err
}

// Reset begins to count anew.
func (p *Poller) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gap, p.answers, p.err, p.last = 0, 0, nil, time.Now()
}

// Stop ends it.
func (p *Poller) Stop() {
	p.stop()
	<-p.done
}

// API is the API as the programs of each machine reach it.
const API = "https://127.0.0.1:6443"

// configMaps is where tests write.
const configMaps = API + "/api/v1/namespaces/default/configmaps"

// APIClient is a client of the API within the machine's network, with the administrator's rights. Kept: it keeps its connection
// and speaks HTTP/2, as the components do; else it connects anew for each question.
func (c *Cluster) APIClient(kept bool, timeout time.Duration) *http.Client {
	c.T.Helper()
	admin := c.On(c.Main(0)) // its disk, not its processes
	cas := x509.NewCertPool()
	cas.AppendCertsFromPEM(admin.Read("etc-kubernetes", "pki", "ca.crt"))
	pair, err := tls.X509KeyPair(admin.Read("etc-kubernetes", "pki", "admin.crt"), admin.Read("etc-kubernetes", "pki", "admin.key"))
	if err != nil {
		c.T.Fatal(err)
	}
	return &http.Client{Timeout: timeout, Transport: &http.Transport{
		DialContext: c.Dial, DisableKeepAlives: !kept, ForceAttemptHTTP2: kept,
		TLSClientConfig: &tls.Config{RootCAs: cas, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
	}}
}

// Readers are several clients of the API within one machine, some of which keep their connections.
type Readers []*Poller

// ReadAPI begins to read an object that is in etcd.
func (c *Cluster) ReadAPI(kept, fresh int) Readers {
	c.T.Helper()
	var all Readers
	for i := range kept + fresh {
		all = append(all, c.poll(c.APIClient(i < kept, time.Second), configMaps+"/kube-root-ca.crt"))
	}
	return all
}

// Gap is the longest time for which one of them had no answer, and answers are those of the one with the fewest.
func (r Readers) Gap() (gap time.Duration, answers int, err error) {
	for i, p := range r {
		g, n, e := p.Gap()
		if g > gap {
			gap, err = g, e
		}
		if i == 0 || n < answers {
			answers = n
		}
	}
	return gap, answers, err
}

// Reset begins to count anew.
func (r Readers) Reset() {
	for _, p := range r {
		p.Reset()
	}
}

// Stop ends them.
func (r Readers) Stop() {
	for _, p := range r {
		p.Stop()
	}
}

// Writer writes one object after the other through the API and remembers which writes were acknowledged.
type Writer struct {
	Poller // counts acknowledged writes

	prefix string

	mu    sync.Mutex // guards the field below
	acked []string
}

// WriteAPI begins to write ConfigMaps from within the machine.
func (c *Cluster) WriteAPI(prefix string) *Writer {
	c.T.Helper()
	client := c.APIClient(true, 2*time.Second)
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.T.Context()))
	w := &Writer{Poller: Poller{stop: cancel, done: make(chan struct{}), last: time.Now()}, prefix: prefix}
	go func() {
		defer close(w.done)
		defer client.CloseIdleConnections()
		tick := time.NewTicker(25 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				name := fmt.Sprintf("%s-%d", prefix, i)
				err := WriteConfigMap(ctx, client, name)
				if err == nil {
					w.mu.Lock()
					w.acked = append(w.acked, name)
					w.mu.Unlock()
				}
				w.note(err, time.Now())
			}
		}
	}()
	return w
}

// WriteConfigMap makes one. No error means that the API server has acknowledged it.
func WriteConfigMap(ctx context.Context, client *http.Client, name string) error {
	body := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"value":"kept"}}`, name)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, configMaps, strings.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	reply, err := client.Do(r)
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(io.LimitReader(reply.Body, 1<<20))
	if err == nil && reply.StatusCode != http.StatusCreated {
		return fmt.Errorf("%s: %s", reply.Status, text)
	}
	return err
}

// Acked are the acknowledged writes.
func (w *Writer) Acked() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.acked...)
}

// AllThere fails the test when an acknowledged write is gone.
func (w *Writer) AllThere(c *Cluster) {
	c.T.Helper()
	var list struct {
		Items []struct{ Metadata struct{ Name string } }
	}
	if err := json.Unmarshal([]byte(c.Kubectl("get", "configmaps", "--output", "json")), &list); err != nil {
		c.T.Fatal(err)
	}
	there := map[string]bool{}
	for _, item := range list.Items {
		there[item.Metadata.Name] = true
	}
	acked, lost := w.Acked(), 0
	for _, name := range acked {
		if !there[name] {
			lost++
		}
	}
	c.T.Logf("%d acknowledged writes, %d of them lost", len(acked), lost)
	if lost > 0 || len(acked) == 0 {
		c.T.Errorf("%d of %d acknowledged writes are lost", lost, len(acked))
	}
}

// Credential is what a request or its connection carries.
type Credential func(c *Cluster, r *http.Request, conf *tls.Config)

// BearerToken is a bearer token.
func BearerToken(token string) Credential {
	return func(_ *Cluster, r *http.Request, _ *tls.Config) { r.Header.Set("Authorization", "Bearer "+token) }
}

// ServerName asks for the server under another name, for which its certificate has to be valid too.
func ServerName(name string) Credential {
	return func(_ *Cluster, _ *http.Request, conf *tls.Config) { conf.ServerName = name }
}

// Certificate is a client certificate of the machine: path.crt and path.key below Data.
func Certificate(path string) Credential {
	return func(c *Cluster, _ *http.Request, conf *tls.Config) {
		pair, err := tls.X509KeyPair(c.Read(path+".crt"), c.Read(path+".key"))
		if err != nil {
			c.T.Fatal(err)
		}
		// Given whatever the server says of the CAs that it trusts: it is the server that has to refuse.
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
}

// HTTPS asks a component of the machine, from within the machine's network, and checks its certificate. Code 0 means that
// the server ended the connection instead of answering, and body says how. Everything else fails the test.
func (c *Cluster) HTTPS(t testing.TB, method, url string, credentials ...Credential) (code int, body string) {
	t.Helper()
	cas := x509.NewCertPool()
	for _, ca := range []string{"pki/ca.crt", "pki/etcd/ca.crt"} {
		cas.AppendCertsFromPEM(c.Read("etc-kubernetes", ca))
	}
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	conf := &tls.Config{RootCAs: cas, MinVersion: tls.VersionTLS12}
	for _, add := range credentials {
		add(c, r, conf)
	}
	transport := &http.Transport{DialContext: c.Dial, TLSClientConfig: conf}
	defer transport.CloseIdleConnections()
	reply, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Do(r)
	if err != nil {
		if strings.Contains(err.Error(), "remote error: tls:") {
			return 0, err.Error()
		}
		t.Fatalf("%s %s: %v", method, url, err)
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(io.LimitReader(reply.Body, 1<<20))
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	return reply.StatusCode, string(text)
}
