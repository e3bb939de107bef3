// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"context"
	"net/netip"
	"testing"

	"github.com/slipway-project/slipway/internal/control/registry"
	"github.com/slipway-project/slipway/internal/control/registry/registrytest"
	"github.com/slipway-project/slipway/internal/core/admission"
)

// BenchmarkAdmit is one new machine among as many as there are by then, up to a thousand.
func BenchmarkAdmit(b *testing.B) {
	wide := func(ctx context.Context) (admission.Policy, error) {
		p, err := policy(ctx)
		p.PodCIDR = netip.MustParsePrefix("10.128.0.0/12")
		return p, err
	}
	var r *registry.Registry
	for n := 0; b.Loop(); n++ {
		if n%1000 == 0 {
			r = begun(b, registrytest.NewMemory(), start).WithPolicy(wide)
		}
		token, _, err := r.CreateToken(b.Context(), registry.TokenSpec{Pool: "worker"})
		if err != nil {
			b.Fatal(err)
		}
		req := join(n%1000+2000, token.ID)
		if _, err := r.Admit(b.Context(), req); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkStranger is a refusal among a thousand nodes, from cold eyes.
func BenchmarkStranger(b *testing.B) {
	r := begun(b, registrytest.NewMemory(), start)
	for b.Loop() {
		if _, err := r.Admit(b.Context(), join(6, "")); reasonOf(err) != admission.KeyUnknown {
			b.Fatal(err)
		}
	}
}
