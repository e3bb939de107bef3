// SPDX-License-Identifier: Apache-2.0

package compose

import (
	"fmt"
	"testing"

	"github.com/slipway-project/slipway/internal/core/config"
	"github.com/slipway-project/slipway/internal/core/endpoint"
	"github.com/slipway-project/slipway/internal/core/spec"
)

func TestAPIAddresses(t *testing.T) {
	t.Parallel()
	c := config.Cluster{ControlPlane: spec.ControlPlane{
		LoadBalancer: endpoint.Endpoint{Host: endpoint.ParseHost("192.0.2.1"), Port: 6443},
		ExtraSANs:    []endpoint.Host{endpoint.ParseHost("api.example.org"), endpoint.ParseHost("::ffff:203.0.113.9"), endpoint.ParseHost("2001:db8::1")},
	}}
	if got := fmt.Sprint(apiAddresses(c)); got != "[192.0.2.1 203.0.113.9 2001:db8::1]" {
		t.Errorf("reserved: %s", got)
	}
	if got := apiAddresses(config.Cluster{ControlPlane: spec.ControlPlane{LoadBalancer: endpoint.Endpoint{Host: endpoint.ParseHost("lb.example.org"), Port: 443}}}); len(got) != 0 {
		t.Errorf("got %v for a name, want no addresses", got)
	}
}
