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

// leaseAPI is an API server in memory that has one lease, so that candidates run in fake time.
type leaseAPI struct {
	mu      sync.Mutex // guards the fields below
	lease   map[string]any
	version int
	late    int      // writes of the lease that were refused
	writes  []string // names of what was written other than the lease
}

// door is one candidate's way to it.
type door struct {
	api *leaseAPI

	mu   sync.Mutex // guards the fields below
	shut bool       // nothing gets through
	deaf int        // so many writes are done, and their answers are lost
}

func (d *door) set(change func(*door)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(d)
}

func (d *door) RoundTrip(r *http.Request) (*http.Response, error) {
	d.mu.Lock()
	shut, deaf := d.shut, !d.shut && d.deaf > 0 && r.Method != http.MethodGet
	if deaf {
		d.deaf--
	}
	d.mu.Unlock()
	if shut {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	answer := d.api.serve(r)
	if deaf {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return answer, nil
}

// conflicts counts the writes that came after another that their writer did not know of.
func (a *leaseAPI) conflicts() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.late
}

func (a *leaseAPI) serve(r *http.Request) *http.Response {
	a.mu.Lock()
	defer a.mu.Unlock()
	var body map[string]any
	if r.Body != nil {
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			return answer(r, http.StatusBadRequest, nil)
		}
	}
	o := unstructured.Unstructured{Object: body}
	switch {
	case !strings.Contains(r.URL.Path, "/leases"):
		a.writes = append(a.writes, o.GetName())
		return answer(r, http.StatusOK, body)
	case r.Method == http.MethodGet && a.lease == nil, r.Method == http.MethodPut && a.lease == nil:
		return answer(r, http.StatusNotFound, failure("NotFound", http.StatusNotFound))
	case r.Method == http.MethodGet:
		return answer(r, http.StatusOK, a.lease)
	case r.Method == http.MethodPost && a.lease != nil:
		return answer(r, http.StatusConflict, failure("AlreadyExists", http.StatusConflict))
	case r.Method == http.MethodPut && o.GetResourceVersion() != fmt.Sprint(a.version):
		a.late++
		return answer(r, http.StatusConflict, failure("Conflict", http.StatusConflict))
	}
	a.version++
	o.SetResourceVersion(fmt.Sprint(a.version))
	a.lease = o.Object
	return answer(r, http.StatusOK, a.lease)
}

func failure(reason string, code int) map[string]any {
	return map[string]any{"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": reason, "code": code}
}

func answer(r *http.Request, code int, body map[string]any) *http.Response {
	text, _ := json.Marshal(body)
	return &http.Response{
		StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(text)), Request: r, ProtoMajor: 1, ProtoMinor: 1,
	}
}

func (a *leaseAPI) client(t *testing.T) (*Client, *door) {
	t.Helper()
	quiet()
	d := &door{api: a}
	c, err := newClient(&rest.Config{Host: "http://api.test", QPS: -1}, &http.Client{Transport: d}, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	return c, d
}

// candidate runs in the background and remembers its terms.
type candidate struct {
	*door
	client *Client
	stop   context.CancelFunc
	ended  chan error

	mu sync.Mutex // guards the field below
	state
}

type state struct {
	terms []tenure
	leads bool
	fence Fence
	said  []string
}

type tenure struct{ begun, ended time.Time }

func (a *leaseAPI) candidate(t *testing.T, name string) *candidate {
	t.Helper()
	c := &candidate{ended: make(chan error, 1)}
	c.client, c.door = a.client(t)
	var ctx context.Context
	ctx, c.stop = context.WithCancel(t.Context())
	follow := func(holder, why string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.said = append(c.said, strings.TrimSpace(holder+" "+why))
	}
	go func() {
		c.ended <- c.client.Elect(ctx, ElectConfig{Namespace: "kube-system", Name: "x", Identity: name, Follow: follow}, c.lead)
	}()
	t.Cleanup(func() {
		c.stop()
		if err := <-c.ended; !errors.Is(err, context.Canceled) {
			t.Errorf("%s ended with %v", name, err)
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

// now is a copy, when nothing moves.
func (c *candidate) now() state {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return state{slices.Clone(c.terms), c.leads, c.fence, slices.Clone(c.said)}
}

// put is what a leader writes.
func put(ctx context.Context, c *Client, name string) error {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name}}}
	_, err := c.dyn.Resource(configMaps).Namespace("default").Create(ctx, o, metav1.CreateOptions{})
	return err
}
