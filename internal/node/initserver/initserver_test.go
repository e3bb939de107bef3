// SPDX-License-Identifier: Apache-2.0

package initserver

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/slipway-project/slipway/internal/core/machine"
	"github.com/slipway-project/slipway/internal/initclient"
	"github.com/slipway-project/slipway/internal/node/lock"
)

func wantResult(node string) initclient.Result {
	return initclient.Result{Cluster: "c-" + node, Kubeconfig: []byte("kubeconfig of " + node)}
}

// TestInit: a request from the first call to the result, and what is on the disk afterwards (TC-1).
func TestInit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, c := r.begin(), r.client()
	facts, err := c.Facts(t.Context())
	if want := (initclient.Machine{Slipway: "test", Lock: "free", Facts: machine.Facts{Address: netip.MustParseAddr("192.0.2.1"), UpstreamDNS: true}}); err != nil || facts != want {
		t.Fatalf("%+v, %v", facts, err)
	}
	if _, err := c.Init(t.Context(), idA, ticket("n1")); err != nil {
		t.Fatal(err)
	}
	var seen []string
	result, err := c.Watch(t.Context(), idA, func(e initclient.Event) { seen = append(seen, e.Phase+e.Item) })
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wantResult("n1"), result); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"claimed", "installed", "unit/u0", "unit/u1", "unit/u2", "committed"}, seen); diff != "" {
		t.Error(diff)
	}
	if s := a.cfg.Lock.State(); s.String() != "committed (cluster c-n1)" || s.Node != "n1" || s.ID != idA {
		t.Errorf("got lock %+v", s)
	}
	for name, id := range map[string]string{"the same again": idA, "another": idB} {
		phase, err := c.Init(t.Context(), id, ticket("n1"))
		if ok := id == idA; (ok && (err != nil || phase != "committed")) || (!ok && status.Code(err) != codes.FailedPrecondition) {
			t.Errorf("%s: %q, %v", name, phase, err)
		}
	}
	info, err := os.Stat(filepath.Join(a.dir, "request"))
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("request file: got %v, %v, want mode 0600", info.Mode(), err)
	}
	if n := a.machine.count("wipe"); n != 0 {
		t.Errorf("got %d wipes, want none", n)
	}
}

// TestTwoAtOnce: of two concurrent requests one gets the machine; the other is refused and changes nothing (TC-2).
func TestTwoAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.begin()
	var all sync.WaitGroup
	nodes := map[string]string{idA: "n1", idB: "n2"}
	var mu sync.Mutex
	errs := map[string]error{}
	for id, node := range nodes {
		c := r.client()
		all.Go(func() {
			_, err := c.Init(t.Context(), id, ticket(node))
			mu.Lock()
			defer mu.Unlock()
			errs[id] = err
		})
	}
	all.Wait()
	winner, loser := idA, idB
	if errs[idA] != nil {
		winner, loser = idB, idA
	}
	if errs[winner] != nil || status.Code(errs[loser]) != codes.FailedPrecondition {
		t.Fatal(errs)
	}
	result, err := r.client().Watch(t.Context(), winner, nil)
	if diff := cmp.Diff(wantResult(nodes[winner]), result); err != nil || diff != "" {
		t.Error(err, diff)
	}
	if _, err := r.client().Watch(t.Context(), loser, nil); status.Code(err) != codes.NotFound {
		t.Errorf("watch the refused request: got %v", err)
	}
	if n := a.machine.count("install"); n != 1 {
		t.Errorf("got %d installs", n)
	}
}

func TestRefusedRequests(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.begin()
	joins := ticket("n1")
	joins.Cluster = "c9"
	tests := map[string]struct {
		id     string
		ticket []byte
		want   string
	}{
		"short id":           {"short", encoded(t, ticket("n1")), "invalid request id"},
		"long id":            {strings.Repeat("a", 65), encoded(t, ticket("n1")), "invalid request id"},
		"upper case":         {"REQUEST-A", encoded(t, ticket("n1")), "invalid request id"},
		"path":               {"../../etc/x", encoded(t, ticket("n1")), "invalid request id"},
		"no ticket":          {idA, nil, "decode ticket"},
		"no JSON":            {idA, []byte("x"), "decode ticket"},
		"unknown field":      {idA, []byte(`{"version":1,"x":1}`), "decode ticket"},
		"ticket of a joiner": {idA, encoded(t, joins), "init needs a ticket without a cluster"},
	}
	for name, tt := range tests {
		_, err := a.begin(tt.id, tt.ticket)
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Stat(filepath.Join(a.dir, "request")); !errors.Is(err, os.ErrNotExist) || a.cfg.Lock.State().Phase != lock.Free {
		t.Errorf("got request file %v, lock %s, want no change", err, a.cfg.Lock.State())
	}
}

func TestSameIDOtherTicket(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.begin()
	c := r.client()
	if _, err := c.Init(t.Context(), idA, ticket("n1")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Init(t.Context(), idA, ticket("n2")); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("got error %v", err)
	}
}

// TestJoinWins: a join that claims the machine first ends the service without an error.
func TestJoinWins(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, c := r.begin(), r.client()
	if _, err := c.Facts(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := a.cfg.Lock.Claim(lock.Join, "join-1"); err != nil {
		t.Fatal(err)
	}
	if err := <-a.done; err != nil {
		t.Errorf("got error %v", err)
	}
	a.done <- nil
	if conn, err := net.Dial("tcp", a.addr); err == nil {
		conn.Close()
		t.Error("the listener is still open")
	}
	if _, err := a.Server.begin(idA, encoded(t, ticket("n1"))); err == nil {
		t.Error("a call after the end was accepted")
	}
	if _, err := os.Stat(filepath.Join(a.dir, "secret")); err != nil {
		t.Errorf("the join may still fail, but the secret is gone: %v", err)
	}
}

// TestLinger: after the linger time, the secret and the result are no longer on the disk.
func TestLinger(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.tune = func(c *Config, _ *testMachine) { c.Linger = 10 * time.Millisecond }
	a := r.begin()
	if _, err := r.client().Init(t.Context(), idA, ticket("n1")); err != nil {
		t.Fatal(err)
	}
	if err := <-a.done; err != nil {
		t.Errorf("got error %v", err)
	}
	a.done <- nil
	for _, name := range []string{"secret", "request", "request.prev"} {
		if _, err := os.Stat(filepath.Join(a.dir, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: got %v, want no file", name, err)
		}
	}
	if s := a.cfg.Lock.State(); s.Phase != lock.Committed {
		t.Errorf("got lock %s", s)
	}
}

// TestDone: Done for the committed request ends the service, Done for another request does not.
func TestDone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.begin()
	c := r.client()
	if err := c.Done(t.Context(), idA); err == nil {
		t.Error("Done before a request: got no error")
	}
	if _, err := c.Init(t.Context(), idA, ticket("n1")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Watch(t.Context(), idA, func(initclient.Event) {}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.cfg.Lock.Wait(t.Context(), func(s lock.State) bool { return s.Phase == lock.Committed }); err != nil {
		t.Fatal(err)
	}
	if err := c.Done(t.Context(), idB); err == nil {
		t.Error("Done for another request: got no error")
	}
	_ = c.Done(t.Context(), idA) // the reply may be lost when the service ends
	if err := <-a.done; err != nil {
		t.Errorf("got error %v", err)
	}
	a.done <- nil
	if _, err := os.Stat(filepath.Join(a.dir, "secret")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("secret file: got %v, want none", err)
	}
}
