// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
)

// leaseAPI is an API server in memory with one lease, so that candidates run in fake time.
type leaseAPI struct {
	mu      sync.Mutex // guards the fields below
	lease   map[string]any
	version int
	stale   int      // writes of the lease that conflicted with an earlier one
	writes  []string // names of other objects that were written
}

// link is the connection of one candidate to the server.
type link struct {
	api *leaseAPI

	mu   sync.Mutex // guards the fields below
	cut  bool       // requests do not reach the server
	deaf int        // number of writes whose responses are lost
}

func (d *link) set(change func(*link)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(d)
}

func (d *link) RoundTrip(r *http.Request) (*http.Response, error) {
	d.mu.Lock()
	cut, deaf := d.cut, !d.cut && d.deaf > 0 && r.Method != http.MethodGet
	if deaf {
		d.deaf--
	}
	d.mu.Unlock()
	if cut {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	response := d.api.serve(r)
	if deaf {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return response, nil
}

// conflicts returns how many writes conflicted with an earlier one.
func (a *leaseAPI) conflicts() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stale
}

func (a *leaseAPI) serve(r *http.Request) *http.Response {
	a.mu.Lock()
	defer a.mu.Unlock()
	var body map[string]any
	if r.Body != nil {
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			return respond(r, http.StatusBadRequest, nil)
		}
	}
	o := unstructured.Unstructured{Object: body}
	switch {
	case !strings.Contains(r.URL.Path, "/leases"):
		a.writes = append(a.writes, o.GetName())
		return respond(r, http.StatusOK, body)
	case r.Method == http.MethodGet && a.lease == nil, r.Method == http.MethodPut && a.lease == nil:
		return respond(r, http.StatusNotFound, failure("NotFound", http.StatusNotFound))
	case r.Method == http.MethodGet:
		return respond(r, http.StatusOK, a.lease)
	case r.Method == http.MethodPost && a.lease != nil:
		return respond(r, http.StatusConflict, failure("AlreadyExists", http.StatusConflict))
	case r.Method == http.MethodPut && o.GetResourceVersion() != fmt.Sprint(a.version):
		a.stale++
		return respond(r, http.StatusConflict, failure("Conflict", http.StatusConflict))
	}
	a.version++
	o.SetResourceVersion(fmt.Sprint(a.version))
	a.lease = o.Object
	return respond(r, http.StatusOK, a.lease)
}

func failure(reason string, code int) map[string]any {
	return map[string]any{"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": reason, "code": code}
}

func respond(r *http.Request, code int, body map[string]any) *http.Response {
	text, _ := json.Marshal(body)
	return &http.Response{
		StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(text)), Request: r, ProtoMajor: 1, ProtoMinor: 1,
	}
}

func (a *leaseAPI) client(t *testing.T) (*Client, *link) {
	t.Helper()
	silenceKlog()
	d := &link{api: a}
	c, err := newClient(&rest.Config{Host: "http://api.test", QPS: -1}, &http.Client{Transport: d}, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	return c, d
}

// candidate runs Elect in the background and records its terms.
type candidate struct {
	*link
	client *Client
	stop   context.CancelFunc
	ended  chan error

	mu sync.Mutex // guards the field below
	state
}

type state struct {
	terms  []tenure
	leads  bool
	fence  Fence
	follow []string // calls of Follow
}

type tenure struct{ begun, ended time.Time }

func (a *leaseAPI) candidate(t *testing.T, name string) *candidate {
	t.Helper()
	c := &candidate{ended: make(chan error, 1)}
	c.client, c.link = a.client(t)
	var ctx context.Context
	ctx, c.stop = context.WithCancel(t.Context())
	follow := func(holder, why string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.state.follow = append(c.state.follow, strings.TrimSpace(holder+" "+why))
	}
	go func() {
		c.ended <- c.client.Elect(ctx, ElectConfig{Namespace: "kube-system", Name: "x", Identity: name, Follow: follow}, c.lead)
	}()
	t.Cleanup(func() {
		c.stop()
		if err := <-c.ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Elect of %s returned %v", name, err)
		}
	})
	return c
}

func (c *candidate) lead(ctx context.Context, fence Fence) error {
	c.mu.Lock()
	c.leads, c.fence = true, fence
	c.terms = append(c.terms, tenure{begun: time.Now()})
	c.mu.Unlock()
	<-ctx.Done()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leads = false
	c.terms[len(c.terms)-1].ended = time.Now()
	return ctx.Err()
}

// now returns a copy of the state when all goroutines are blocked.
func (c *candidate) now() state {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return state{slices.Clone(c.terms), c.leads, c.fence, slices.Clone(c.state.follow)}
}

// put writes a ConfigMap, as a leader would.
func put(ctx context.Context, c *Client, name string) error {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name}}}
	_, err := c.dyn.Resource(configMaps).Namespace("default").Create(ctx, o, metav1.CreateOptions{})
	return err
}
