// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/control/registry/registrytest"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/objects"
	"github.com/slipway-project/slipway/internal/core/pin"
)

// recordsServer returns the shared server with the namespace and the roles for records.
func recordsServer(t *testing.T) *server {
	t.Helper()
	s := sharedServer(t)
	if _, err := s.client(t, "super-admin").Apply(t.Context(), clusterAddOns(t)[:1], nil); err != nil {
		t.Fatal(err)
	}
	return s
}

// The store passes the conformance suite with only the rights of the control role.
func TestRecordStoreConformance(t *testing.T) {
	t.Parallel()
	s := recordsServer(t)
	registrytest.Conformance(t, func(t *testing.T) registry.Store { return s.client(t, "control").Records() })
}

// The form of a record's Secret, and that only the control role has access to it.
func TestRecordSecrets(t *testing.T) {
	t.Parallel()
	s := recordsServer(t)
	if _, err := s.client(t, "control").Records().Put(t.Context(), registry.Item{Kind: "seen", Name: "a.b", Data: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	super := s.client(t, "super-admin").dyn.Resource(secrets).Namespace("slipway-system")
	o, err := super.Get(t.Context(), "seen.a.b", metav1.GetOptions{})
	if err != nil || str(o.Object, "type") != "slipway.dev/seen" || o.GetLabels()["slipway.dev/registry"] != "seen" {
		t.Fatalf("got Secret %v, error %v, want the type and label of a record", o, err)
	}
	for _, who := range []string{"node-a"} {
		store := s.client(t, who).Records()
		if item, err := store.Get(t.Context(), "seen", "a.b"); err == nil || errors.Is(err, registry.ErrNotFound) {
			t.Errorf("get as %s: got %s, %v, want Forbidden", who, item.Data, err)
		}
		if items, err := store.List(t.Context(), "seen"); err == nil {
			t.Errorf("list as %s: got %v, want Forbidden", who, items)
		}
		if _, err := store.Put(t.Context(), registry.Item{Kind: "seen", Name: who}); err == nil {
			t.Errorf("put as %s succeeded, want Forbidden", who)
		}
	}
	if _, err := s.client(t, "control").dyn.Resource(secrets).Namespace("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the control role lists Secrets in another namespace: got %v, want Forbidden", err)
	}
	// A Secret with the label that is not a record makes List fail; it is not skipped.
	fake := parse(t, "x", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: seen.c, namespace: slipway-system, labels: {slipway.dev/registry: seen}}\n").Objects[0]
	fake["kind"] = "Secret"
	body, err := withLabel(fake, "x")
	if err != nil {
		t.Fatal(err)
	}
	o.SetName("seen.c")
	if err := o.UnmarshalJSON(body); err != nil {
		t.Fatal(err)
	}
	if _, err := super.Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if items, err := s.client(t, "control").Records().List(t.Context(), "seen"); err == nil || !strings.Contains(err.Error(), "slipway-system/seen.c") {
		t.Errorf("list with another Secret: got %v, %v, want an error with its name", items, err)
	}
}

// Without the namespace or the server, no call returns one of the errors that say something about the record.
func TestRecordStoreUnavailable(t *testing.T) {
	t.Parallel()
	s := ownServer(t)
	super := s.client(t, "super-admin").Records()
	waitReadyz(t, s.client(t, "super-admin"))
	if _, err := super.Put(t.Context(), registry.Item{Kind: "away", Name: "a"}); err == nil || errors.Is(err, registry.ErrExists) || errors.Is(err, registry.ErrNotFound) {
		t.Errorf("put without the namespace: got %v", err)
	}
	ns, err := objects.Parse("ns", "apiVersion: v1\nkind: Namespace\nmetadata: {name: slipway-system}\n")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.client(t, "super-admin").Apply(t.Context(), []objects.AddOn{ns}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := super.Put(t.Context(), registry.Item{Kind: "away", Name: "a"}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	changed, ended := make(chan struct{}, 100), make(chan error, 1)
	go func() { ended <- super.Watch(ctx, "away", func() { changed <- struct{}{} }) }()
	<-changed
	kill(s.api)
	if item, err := super.Get(t.Context(), "away", "a"); err == nil || errors.Is(err, registry.ErrNotFound) {
		t.Errorf("get without a server: got %v, %v", item, err)
	}
	if items, err := super.List(t.Context(), "away"); err == nil {
		t.Errorf("list without a server: got %v", items)
	}
	if err := super.Delete(t.Context(), "away", "a", ""); err == nil || errors.Is(err, registry.ErrNotFound) {
		t.Errorf("delete without a server: got %v", err)
	}
	if err := s.startAPI(); err != nil {
		t.Fatal(err)
	}
	waitReadyz(t, s.client(t, "super-admin"))
	for len(changed) > 0 {
		<-changed
	}
	if _, err := super.Put(t.Context(), registry.Item{Kind: "away", Name: "b"}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-changed:
	case <-time.After(time.Minute):
		t.Error("the watch did not resume after the restart of the server")
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Watch returned %v", err)
	}
}

// 100 machines use one token at three control planes with one real API server: exactly one is admitted.
func TestTokenOnRealStore(t *testing.T) {
	t.Parallel()
	s := recordsServer(t)
	policy := func(context.Context) (admission.Policy, error) {
		return admission.Policy{
			Cluster: "dev", APIServer: "1.36.4", PodCIDR: netip.MustParsePrefix("10.244.0.0/16"), NodePodPrefix: 24,
			Pools: map[string]admission.Pool{"main": {ControlPlane: true}, "worker": {}},
		}, nil
	}
	var planes []*registry.Registry
	for range 3 {
		planes = append(planes, registry.New(s.client(t, "control").Records(), time.Now).WithPolicy(policy))
	}
	first := admission.Node{Name: "dev-main-0", Pool: "main", PodCIDR: netip.MustParsePrefix("10.244.0.0/24")}
	if err := planes[0].Register(t.Context(), []admission.Node{first}); err != nil {
		t.Fatal(err)
	}
	for round := range 3 {
		token, _, err := planes[round].CreateToken(t.Context(), registry.TokenSpec{Pool: "worker"})
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var in []string
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				req := admission.Request{
					Key: pin.Pin(fmt.Sprintf("sha256:%064x", 1000*round+i+1)), Address: netip.AddrFrom4([4]byte{10, 89, byte(round), byte(i + 1)}),
					Evidence: admission.Evidence{TokenID: token.ID},
				}
				n, err := planes[i%3].Admit(t.Context(), req)
				var no *admission.Refusal
				switch {
				case err == nil:
					mu.Lock()
					in = append(in, n.Name)
					mu.Unlock()
				case !errors.As(err, &no) || no.Reason != admission.TokenUsed:
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if len(in) != 1 || in[0] != fmt.Sprintf("dev-worker-%d", round) {
			t.Errorf("round %d: got the nodes %v, want one", round, in)
		}
	}
	if nodes, err := planes[1].Nodes(t.Context()); err != nil || len(nodes) != 4 {
		t.Errorf("got %d records, %v, want 4", len(nodes), err)
	}
}
