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
	"time"
)

// Poller requests a URL every 50 ms from the machine's network and measures gaps between answers.
type Poller struct {
	stop func()
	done chan struct{}

	mu      sync.Mutex // guards the fields below
	answers int
	last    time.Time     // of the last answer
	gap     time.Duration // longest time without an answer
	err     error         // last error
}

// Poll starts a poller that uses a new connection for each request.
func (c *Cluster) Poll(url string) *Poller {
	return c.poll(&http.Client{
		Transport: &http.Transport{DialContext: c.Dial, DisableKeepAlives: true},
		Timeout:   time.Second,
	}, url)
}

func (c *Cluster) poll(client *http.Client, url string) *Poller {
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.T.Context())) // it may outlive the subtest that starts it
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

// Gap returns the longest time without an answer since the last Reset, the number of answers and the last error.
func (p *Poller) Gap() (gap time.Duration, answers int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(p.gap, time.Since(p.last)), p.answers, p.err
}

// Reset discards everything measured so far.
func (p *Poller) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gap, p.answers, p.err, p.last = 0, 0, nil, time.Now()
}

// Stop stops the poller.
func (p *Poller) Stop() {
	p.stop()
	<-p.done
}

// API is the URL under which programs in each machine reach the Kubernetes API.
const API = "https://127.0.0.1:6443"

// configMaps is the collection that tests write to.
const configMaps = API + "/api/v1/namespaces/default/configmaps"

// APIClient returns a client of the API in the machine's network with the administrator's rights. If kept is set, it keeps its connection
// and uses HTTP/2, as the components do; otherwise it opens a connection for each request.
func (c *Cluster) APIClient(kept bool, timeout time.Duration) *http.Client {
	c.T.Helper()
	admin := c.On(c.Main(0)) // only its disk is needed: it may be stopped
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

// Readers are several clients of the API in one machine, some of which keep their connections.
type Readers []*Poller

// ReadAPI starts clients that read an object from etcd.
func (c *Cluster) ReadAPI(kept, fresh int) Readers {
	c.T.Helper()
	var all Readers
	for i := range kept + fresh {
		all = append(all, c.poll(c.APIClient(i < kept, time.Second), configMaps+"/kube-root-ca.crt"))
	}
	return all
}

// Gap returns the longest time for which any of them had no answer, its last error, and the smallest number of answers to any of them.
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

// Reset discards everything measured so far.
func (r Readers) Reset() {
	for _, p := range r {
		p.Reset()
	}
}

// Stop stops all of them.
func (r Readers) Stop() {
	for _, p := range r {
		p.Stop()
	}
}

// Writer creates objects through the API, one after the other, and records which writes were acknowledged.
type Writer struct {
	Poller // answers are acknowledged writes

	prefix string

	mu    sync.Mutex // guards the field below
	acked []string
}

// WriteAPI starts to create ConfigMaps PREFIX-0, PREFIX-1, … from the machine.
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

// WriteConfigMap creates a ConfigMap. It returns nil if the API server has acknowledged the write.
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

// Acked returns the names of the acknowledged objects.
func (w *Writer) Acked() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.acked...)
}

// CheckAcked fails the test if an acknowledged write is lost, or if there was none.
func (w *Writer) CheckAcked(c *Cluster) {
	c.T.Helper()
	var list struct {
		Items []struct{ Metadata struct{ Name string } }
	}
	if err := json.Unmarshal([]byte(c.Kubectl("get", "configmaps", "--output", "json")), &list); err != nil {
		c.T.Fatal(err)
	}
	found := map[string]bool{}
	for _, item := range list.Items {
		found[item.Metadata.Name] = true
	}
	acked, lost := w.Acked(), 0
	for _, name := range acked {
		if !found[name] {
			lost++
		}
	}
	c.T.Logf("%d acknowledged writes", len(acked))
	if lost > 0 || len(acked) == 0 {
		c.T.Errorf("got %d of %d acknowledged writes lost, want 0", lost, len(acked))
	}
}

// Credential changes a request or its TLS configuration.
type Credential func(c *Cluster, r *http.Request, conf *tls.Config)

// BearerToken adds a bearer token.
func BearerToken(token string) Credential {
	return func(_ *Cluster, r *http.Request, _ *tls.Config) { r.Header.Set("Authorization", "Bearer "+token) }
}

// ServerName sets the name that the server's certificate must be valid for.
func ServerName(name string) Credential {
	return func(_ *Cluster, _ *http.Request, conf *tls.Config) { conf.ServerName = name }
}

// Certificate adds a client certificate of the machine: PATH.crt and PATH.key below Data.
func Certificate(path string) Credential {
	return func(c *Cluster, _ *http.Request, conf *tls.Config) {
		pair, err := tls.X509KeyPair(c.Read(path+".crt"), c.Read(path+".key"))
		if err != nil {
			c.T.Fatal(err)
		}
		// Sent even if the server does not list its CA as trusted: the server must refuse it.
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
}

// HTTPS sends a request from the machine's network and verifies the server's certificate. Code 0 means that the server refused the TLS
// connection; body is the error then. Other errors fail the test.
func (c *Cluster) HTTPS(method, url string, credentials ...Credential) (code int, body string) {
	c.T.Helper()
	cas := x509.NewCertPool()
	for _, ca := range []string{"pki/ca.crt", "pki/etcd/ca.crt"} {
		cas.AppendCertsFromPEM(c.Read("etc-kubernetes", ca))
	}
	r, err := http.NewRequestWithContext(c.T.Context(), method, url, nil)
	if err != nil {
		c.T.Fatal(err)
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
		c.T.Fatalf("%s %s: %v", method, url, err)
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(io.LimitReader(reply.Body, 1<<20))
	if err != nil {
		c.T.Fatalf("%s %s: %v", method, url, err)
	}
	return reply.StatusCode, string(text)
}
