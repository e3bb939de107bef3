// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/control/registry/registrytest"
	"github.com/slipway-project/slipway/internal/core/admission"
	"github.com/slipway-project/slipway/internal/core/pin"
)

func testPin(n int) pin.Pin { return pin.Pin(fmt.Sprintf("sha256:%064x", n)) }

func address(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 89, byte(n >> 8), byte(n)}) }

func start() time.Time { return time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC) }

func policy(context.Context) (admission.Policy, error) {
	return admission.Policy{
		Cluster: "dev", APIServer: "1.36.4", PodCIDR: netip.MustParsePrefix("10.244.0.0/16"), NodePodPrefix: 24,
		ServiceCIDR: netip.MustParsePrefix("10.96.0.0/16"), Pools: map[string]admission.Pool{"main": {ControlPlane: true}, "worker": {}},
	}, nil
}

func mainNode() admission.Node {
	return admission.Node{Name: "dev-main-0", Pool: "main", PodCIDR: netip.MustParsePrefix("10.244.0.0/24"), Key: testPin(1000), Address: address(1000)}
}

// begun returns a registry that has the first control plane.
func begun(t testing.TB, store registry.Store, now func() time.Time) *registry.Registry {
	t.Helper()
	r := registry.New(store, now).WithPolicy(policy)
	if err := r.Register(t.Context(), []admission.Node{mainNode()}); err != nil {
		t.Fatal(err)
	}
	return r
}

func reasonOf(err error) admission.Reason {
	var no *admission.Refusal
	if errors.As(err, &no) {
		return no.Reason
	}
	return ""
}

func join(key int, token string) admission.Request {
	return admission.Request{Key: testPin(key), Address: address(key), Evidence: admission.Evidence{TokenID: token}}
}

func TestTokenAdmitsOne(t *testing.T) {
	t.Parallel()
	store := registrytest.NewMemory()
	for round := range 1000 {
		contest(t, store, 100, 3, round)
		if t.Failed() {
			return
		}
		store = registrytest.NewMemory()
	}
}

// contest lets n machines use one token at the same time, at several control planes.
func contest(t *testing.T, store registry.Store, n, planes, round int) {
	t.Helper()
	var at []*registry.Registry
	for range planes {
		at = append(at, begun(t, store, start))
	}
	token, text, err := at[0].CreateToken(t.Context(), registry.TokenSpec{Pool: "worker"})
	if err != nil || !strings.HasPrefix(text, "slipway."+token.ID+".") {
		t.Fatalf("token %q: %v", text, err)
	}
	nodes, errs := make([]admission.Node, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { nodes[i], errs[i] = at[i%planes].Admit(t.Context(), join(i+1, token.ID)) })
	}
	wg.Wait()
	in := 0
	for i := range n {
		switch {
		case errs[i] == nil:
			in++
			if nodes[i].Name != "dev-worker-0" || nodes[i].PodCIDR.String() != "10.244.255.0/24" {
				t.Errorf("round %d: admitted as %+v", round, nodes[i])
			}
		case reasonOf(errs[i]) != admission.TokenUsed:
			t.Errorf("round %d: %v", round, errs[i])
		}
	}
	if all, err := at[0].Nodes(t.Context()); in != 1 || len(all) != 2 || err != nil {
		t.Errorf("round %d: %d of %d machines were admitted, got %d records, error %v", round, in, n, len(all), err)
	}
}
