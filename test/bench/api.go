// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/slipway-project/slipway/internal/proxy"
)

// api is a client of the API server through the machine's socket, over one persistent connection.
type api struct{ http *http.Client }

// kubeconfig has the fields of Slipway's kubeconfigs.
type kubeconfig struct {
	Clusters []struct {
		Cluster struct {
			CA string `yaml:"certificate-authority-data"`
		}
	}
	Users []struct {
		User struct {
			Cert string `yaml:"client-certificate-data"`
			Key  string `yaml:"client-key-data"`
		}
	}
}

func connect(socket, credential string) (api, error) {
	text, err := os.ReadFile(credential)
	if err != nil {
		return api{}, err
	}
	var k kubeconfig
	if err := yaml.Unmarshal(text, &k); err != nil || len(k.Clusters) == 0 || len(k.Users) == 0 {
		return api{}, errors.Join(errors.New("read kubeconfig: no cluster or no user"), err)
	}
	pem := func(s string) []byte {
		out, _ := base64.StdEncoding.DecodeString(s) // X509KeyPair reports an error
		return out
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem(k.Clusters[0].Cluster.CA))
	cert, err := tls.X509KeyPair(pem(k.Users[0].User.Cert), pem(k.Users[0].User.Key))
	if err != nil {
		return api{}, fmt.Errorf("read kubeconfig: %w", err)
	}
	return api{&http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{cert}, ServerName: "kubernetes", MinVersion: tls.VersionTLS12},
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return proxy.DialUnix(ctx, socket) },
		ForceAttemptHTTP2: true,
	}}}, nil
}

// do sends a request and returns the response with any status. The caller closes the body.
func (a api) do(ctx context.Context, method, path, body string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, "https://kubernetes"+path, bytes.NewBufferString(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	return a.http.Do(r)
}

// ask returns status and body. Status 0 means that there was no answer; body is the error then.
func (a api) ask(ctx context.Context, method, path, body string) (int, string) {
	r, err := a.do(ctx, method, path, body)
	if err != nil {
		return 0, err.Error()
	}
	defer r.Body.Close()
	text, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return 0, err.Error()
	}
	return r.StatusCode, string(text)
}

// object has the fields of nodes and pods that bench uses.
type object struct {
	Metadata struct{ Name string }
	Status   struct {
		Phase      string
		Conditions []struct{ Type, Status string }
	}
}

func (o object) ready() bool {
	for _, c := range o.Status.Conditions {
		if c.Type == "Ready" {
			return c.Status == "True"
		}
	}
	return false
}

// follow calls each for every object, now and whenever it changes, until each returns true.
func (a api) follow(ctx context.Context, path string, each func(object) (done bool)) error {
	return poll(ctx, step, func() bool { return a.watch(ctx, path+"?watch=1", each) })
}

// watch runs one watch request to its end. The server may refuse it while it starts, and may end it at any time.
func (a api) watch(ctx context.Context, path string, each func(object) bool) (done bool) {
	r, err := a.do(ctx, http.MethodGet, path, "")
	if err != nil {
		return false
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return false
	}
	for dec := json.NewDecoder(r.Body); ; {
		var e struct {
			Type   string
			Object object
		}
		if dec.Decode(&e) != nil || e.Type == "ERROR" {
			return false
		}
		if each(e.Object) {
			return true
		}
	}
}

// asker calls ask repeatedly and records the longest time without an answer.
type asker struct {
	ask func(ctx context.Context) error

	mu      sync.Mutex // guards the fields below
	answers int
	last    time.Time // of the last answer
	gap     time.Duration
	err     error // last error
}

// requestLimit is how long a client waits for an answer.
const requestLimit = time.Second

func newAsker(ask func(context.Context) error) *asker { return &asker{ask: ask, last: time.Now()} }

// run asks until ctx ends.
func (q *asker) run(ctx context.Context) error {
	return poll(ctx, step, func() bool {
		limited, cancel := context.WithTimeout(ctx, requestLimit)
		defer cancel()
		err := q.ask(limited)
		if ctx.Err() == nil { // otherwise the request was cancelled
			q.note(err, time.Now())
		}
		return false
	})
}

func (q *asker) note(err error, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.gap = max(q.gap, now.Sub(q.last))
	if err != nil {
		q.err = err
		return
	}
	q.answers++
	q.last = now
}

func (q *asker) answered() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.answers
}

func (q *asker) longest() time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.gap
}

func (q *asker) complaint() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.err
}

// reset discards everything measured so far.
func (q *asker) reset() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.answers, q.gap, q.err, q.last = 0, 0, nil, time.Now()
}

// unpooled returns a client that opens a connection for each request.
func (a api) unpooled() api {
	t := a.http.Transport.(*http.Transport).Clone()
	t.DisableKeepAlives, t.ForceAttemptHTTP2, t.TLSNextProto = true, false, map[string]func(string, *tls.Conn) http.RoundTripper{}
	t.TLSClientConfig.NextProtos = []string{"http/1.1"}
	return api{&http.Client{Transport: t}}
}

// expect returns an error unless the answer has this status.
func (a api) expect(ctx context.Context, method, path, body string, want int) error {
	switch status, text := a.ask(ctx, method, path, body); status {
	case want:
		return nil
	case 0:
		return fmt.Errorf("no answer: %s", text)
	default:
		return fmt.Errorf("status %d: %.200s", status, text)
	}
}
